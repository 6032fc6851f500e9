-- KEYS: taken, dead. ARGV for each: id, dead letter. An id that this taker no longer has belongs to another taker, or was
-- rejected before.
for i = 1, #ARGV, 2 do
  -- A dead letter that cannot be written leaves its message where it is.
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then
    redis.call('LPUSH', KEYS[2], ARGV[i + 1])
    redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return 1
