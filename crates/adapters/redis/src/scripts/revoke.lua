-- ARGV goes on with the session alone. It keeps its grants until its TTL has passed.
if call('HEXISTS', KEYS[1], ARGV[3]) == 0 then return 0 end
return call('SADD', KEYS[3], ARGV[3])
