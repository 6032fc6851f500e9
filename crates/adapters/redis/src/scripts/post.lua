-- KEYS: lane, inbox, arrivals. ARGV: commands.
local seq = tonumber(redis.call('HGET', KEYS[1], 'seq')) or 0
local rows, arrived = {}, {}
for i = 1, #ARGV do
  rows[2 * i - 1], rows[2 * i] = '0', struct.pack('>I8', seq + i) .. ARGV[i]
  arrived[i] = ''
end
redis.call('HSET', KEYS[1], 'seq', string.format('%.0f', seq + #ARGV))
for first = 1, #rows, 4000 do
  redis.call('ZADD', KEYS[2], unpack(rows, first, math.min(first + 3999, #rows)))
end
for first = 1, #arrived, 4000 do
  redis.call('RPUSH', KEYS[3], unpack(arrived, first, math.min(first + 3999, #arrived)))
end
