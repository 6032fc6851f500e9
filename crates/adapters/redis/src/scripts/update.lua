-- ARGV goes on with the role. Answers whether there is such a session.
local session = stored(ARGV[3], ARGV[4])
if not session then return 0 end
if sub(session, 41) ~= ARGV[5] then
  call('HSET', KEYS[1], ARGV[3], sub(session, 1, 40) .. ARGV[5])
  changed()
end
return 1
