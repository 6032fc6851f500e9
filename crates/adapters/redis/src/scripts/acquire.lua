-- ARGV goes on with the lane. Answers nothing if there is no such session, else whether it holds the lane now.
if not stored(ARGV[3], ARGV[4]) then return false end
if call('HSETNX', KEYS[4], ARGV[5], ARGV[3]) == 1 then
  changed()
  return 1
end
return call('HGET', KEYS[4], ARGV[5]) == ARGV[3] and 1 or 0
