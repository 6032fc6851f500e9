-- KEYS: as in sessions.lua. Answers the revision, then sessions, renewals and grants.
local call = redis.call
return {
  call('GET', KEYS[5]) or '0', call('HGETALL', KEYS[1]), call('HGETALL', KEYS[2]), call('HGETALL', KEYS[4]),
}
