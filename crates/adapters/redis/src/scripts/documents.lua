-- KEYS: documents, an index of names. ARGV: first bound, last bound, limit, where in an entry of the index the name begins.
-- Answers name and document of each.
local limit, first = tonumber(ARGV[3]), tonumber(ARGV[4])
local entries = call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, limit)
local names = {}
for i = 1, #entries do names[i] = sub(entries[i], first) end
local values = gather(KEYS[1], names)
local answer = {}
for i = 1, #names do answer[2 * i - 1], answer[2 * i] = names[i], values[i] end
return answer
