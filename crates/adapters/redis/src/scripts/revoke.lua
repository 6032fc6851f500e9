-- ARGV goes on with the session alone. It keeps what it has until its time is over.
if call('HEXISTS', KEYS[1], ARGV[3]) == 0 then return 0 end
return call('SADD', KEYS[3], ARGV[3])
