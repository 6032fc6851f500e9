-- ARGV goes on with a revision: the next one is higher, also after a loss of data.
local revision = math.max(tonumber(call('GET', KEYS[5]) or '0'), tonumber(ARGV[3]))
call('SET', KEYS[5], string.format('%.0f', revision))
changed()
return 1
