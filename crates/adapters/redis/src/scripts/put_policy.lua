-- KEYS: policies, changes, revision. ARGV: queue, version expected, new version (8 bytes each), policy.
-- A policy is stored as revision and version, 8 bytes each, and its value. Answers {'ok'} or {'conflict', version}.
local stored = redis.call('HGET', KEYS[1], ARGV[1])
local version = stored and string.sub(stored, 9, 16) or '\0\0\0\0\0\0\0\0'
if version ~= ARGV[2] then return { 'conflict', version } end
local revision = struct.pack('>I8', redis.call('INCR', KEYS[3]))
redis.call('HSET', KEYS[1], ARGV[1], revision .. ARGV[3] .. ARGV[4])
if stored then redis.call('ZREM', KEYS[2], string.sub(stored, 1, 8) .. ARGV[1]) end
redis.call('ZADD', KEYS[2], '0', revision .. ARGV[1])
return { 'ok' }
