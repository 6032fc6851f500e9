-- KEYS: lane. ARGV: epoch seen, the next one, owner, failures. Answers {'ok'} or {'lost', epoch}.
local lane = redis.call('HMGET', KEYS[1], 'epoch', 'owner', 'commit')
local epoch = lane[1] or '0'
if epoch == ARGV[1] then
  redis.call('HSET', KEYS[1], 'epoch', ARGV[2], 'owner', ARGV[3], 'commit', '0', 'failures', ARGV[4])
  redis.call('HDEL', KEYS[1], 'outcomes')
  return { 'ok' }
end
-- The same claim, sent again because its answer was lost.
if epoch == ARGV[2] and lane[2] == ARGV[3] and lane[3] == '0' then return { 'ok' } end
return { 'lost', epoch }
