-- ARGV goes on with the stored session. Answers whether the session was opened: its identity must never have been used.
if call('HEXISTS', KEYS[1], ARGV[3]) == 1 or call('ZSCORE', KEYS[6], ARGV[3]) then return 0 end
call('HSET', KEYS[1], ARGV[3], ARGV[4])
call('HSET', KEYS[2], ARGV[3], '0')
changed()
return 1
