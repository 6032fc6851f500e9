-- KEYS: taken, dead. ARGV for each: id, what is kept of it. One that this taker does not have any more is another's to
-- reject, or was rejected before.
for i = 1, #ARGV, 2 do
  -- What cannot be kept there is not removed here.
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then
    redis.call('LPUSH', KEYS[2], ARGV[i + 1])
    redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return 1
