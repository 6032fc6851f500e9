-- KEYS: hash. ARGV: field, value. Answers the stored value: the first one.
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HGET', KEYS[1], ARGV[1])
