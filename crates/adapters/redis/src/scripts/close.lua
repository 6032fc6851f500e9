-- Answers whether there was such a session.
if not stored(ARGV[3], ARGV[4]) then return 0 end
finish(ARGV[3])
return 1
