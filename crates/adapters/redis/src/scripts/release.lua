-- ARGV goes on with the lane. Answers whether there is such a session.
if not stored(ARGV[3], ARGV[4]) then return 0 end
if call('HGET', KEYS[4], ARGV[5]) == ARGV[3] then
  call('HDEL', KEYS[4], ARGV[5])
  changed()
end
return 1
