-- KEYS: renewals, revision. Answers each session with its number, then the revision. It writes nothing, but is refused
-- whenever a renewal would be: then no session may be ended.
local answer = redis.call('HGETALL', KEYS[1])
answer[#answer + 1] = redis.call('GET', KEYS[2]) or '0'
return answer
