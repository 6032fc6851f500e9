-- KEYS: policies, changes, revision. ARGV: first bound, limit. Answers the current revision, whether there is more,
-- then queue and policy of each.
local limit = tonumber(ARGV[2])
local changes = call('ZRANGEBYLEX', KEYS[2], ARGV[1], '+', 'LIMIT', 0, limit + 1)
local answer = { call('GET', KEYS[3]) or '0', 0 }
if #changes > limit then
  answer[2] = 1
  changes[#changes] = nil
end
local queues = {}
for i = 1, #changes do queues[i] = sub(changes[i], 9) end
local values = gather(KEYS[1], queues)
for i = 1, #queues do answer[2 * i + 1], answer[2 * i + 2] = queues[i], values[i] end
return answer
