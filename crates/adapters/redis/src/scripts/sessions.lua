-- Shared by the scripts of sessions. KEYS: sessions, renewals, revoked, grants, revision, used. ARGV begins with the
-- command that publishes and the channel; in a call of a session it goes on with the session and its secret.
-- A session is stored as its secret (32 bytes), its TTL in milliseconds (8 bytes) and its role.
-- No script reads a time to end a session.
local call, sub = redis.call, string.sub

-- Identities of ended sessions that are remembered. They are random, so this is a courtesy.
local used_max = 4096

local function changed()
  local revision = call('INCR', KEYS[5])
  call(ARGV[1], ARGV[2], revision)
  return revision
end

local function stored(name, secret)
  local session = call('HGET', KEYS[1], name)
  return session and sub(session, 1, 32) == secret and session
end

local function finish(session)
  call('HDEL', KEYS[1], session)
  call('HDEL', KEYS[2], session)
  call('SREM', KEYS[3], session)
  local grants = call('HGETALL', KEYS[4])
  for i = 1, #grants, 2 do
    if grants[i + 1] == session then call('HDEL', KEYS[4], grants[i]) end
  end
  call('ZADD', KEYS[6], changed(), session)
  call('ZREMRANGEBYRANK', KEYS[6], 0, -used_max - 1)
end
