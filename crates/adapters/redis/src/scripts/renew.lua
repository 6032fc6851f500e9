-- Answers whether the session was renewed. Nobody is told: the number is for judges.
if not stored() or call('SISMEMBER', KEYS[3], ARGV[3]) == 1 then return 0 end
call('HINCRBY', KEYS[2], ARGV[3], 1)
return 1
