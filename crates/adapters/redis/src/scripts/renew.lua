-- ARGV goes on with sessions, each with its secret. Answers for each whether it was renewed, then the clock, in seconds
-- and microseconds, unless this user may not read it. Publishes nothing: failure detectors read the number.
local renewed = {}
for i = 3, #ARGV, 2 do
  local alive = stored(ARGV[i], ARGV[i + 1]) and call('SISMEMBER', KEYS[3], ARGV[i]) == 0
  if alive then call('HINCRBY', KEYS[2], ARGV[i], 1) end
  renewed[#renewed + 1] = alive and 1 or 0
end
local time = redis.pcall('TIME')
renewed[#renewed + 1] = time[1] or false
renewed[#renewed + 1] = time[2] or false
return renewed
