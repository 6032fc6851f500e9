-- KEYS: inbox, again, takers, taken of a lost taker, moved. ARGV: that taker. Its messages keep their ids.
-- Answers how many messages wait in `again` and `moved`.
local call = redis.call
local taken = call('HGETALL', KEYS[4])
local entries = {}
for i = 1, #taken, 2 do
  -- Ids of one taker end with a number that rises.
  local order = tonumber(string.match(taken[i], '%-(%d+)$') or '0')
  entries[#entries + 1] = { order, taken[i], taken[i + 1] }
end
table.sort(entries, function(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  return a[2] < b[2]
end)
for _, entry in ipairs(entries) do call('RPUSH', KEYS[2], entry[2] .. '\n' .. entry[3]) end
call('DEL', KEYS[4])
call('SREM', KEYS[3], ARGV[1])
return call('LLEN', KEYS[2]) + call('LLEN', KEYS[5])
