-- KEYS: hash. ARGV: field, value. Answers the value that counts: the first that was put there.
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HGET', KEYS[1], ARGV[1])
