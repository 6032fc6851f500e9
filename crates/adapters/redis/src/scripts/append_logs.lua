-- KEYS: logs of tasks. ARGV: for each chunk the index of its key, its position (8 bytes), its stored value.
-- A log is a sorted set whose members start with their position; the byte after it is never 255.
for i = 1, #ARGV, 3 do
  local key, position = KEYS[tonumber(ARGV[i])], ARGV[i + 1]
  local there = redis.call('ZRANGEBYLEX', key, '[' .. position, '[' .. position .. '\255', 'LIMIT', 0, 1)
  if #there == 0 then redis.call('ZADD', key, '0', position .. ARGV[i + 2]) end
end
