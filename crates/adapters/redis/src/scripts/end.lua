-- ARGV goes on with sessions, each with the number that a failure detector has seen for a whole TTL. Answers how many
-- ended. A session that was renewed meanwhile stays.
local ended = 0
for i = 3, #ARGV, 2 do
  if call('HGET', KEYS[2], ARGV[i]) == ARGV[i + 1] then
    finish(ARGV[i])
    ended = ended + 1
  end
end
return ended
