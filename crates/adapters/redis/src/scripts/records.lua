-- KEYS: record keys, records. ARGV: first bound, limit. Answers whether there is more, then key and value of each.
local limit = tonumber(ARGV[2])
local keys = call('ZRANGEBYLEX', KEYS[1], ARGV[1], '+', 'LIMIT', 0, limit + 1)
local answer = { 0 }
if #keys > limit then
  answer[1] = 1
  keys[#keys] = nil
end
local values = gather(KEYS[2], keys)
for i = 1, #keys do answer[2 * i], answer[2 * i + 1] = keys[i], values[i] end
return answer
