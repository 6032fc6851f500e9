-- KEYS: counts. ARGV: queue after which to begin or '', limit. Answers the first queues with tasks, in their order, each
-- followed by its eight counts.
local byte, sub = string.byte, string.sub
local limit = tonumber(ARGV[2])

-- Lua would compare by the server's locale. A slash separates namespace and name, and sorts before all
-- characters of both.
local function before(left, right)
  for i = 1, math.min(#left, #right) do
    local a, b = byte(left, i), byte(right, i)
    if a ~= b then
      if a == 47 then return true elseif b == 47 then return false end
      return a < b
    end
  end
  return #left < #right
end

local fields = redis.call('HGETALL', KEYS[1])
local counts, queues = {}, {}
for i = 1, #fields, 2 do
  local queue = sub(fields[i], 1, -2)
  if fields[i + 1] ~= '0' and before(ARGV[1], queue) then
    if not counts[queue] then
      counts[queue] = { [0] = '0', '0', '0', '0', '0', '0', '0', '0' }
      queues[#queues + 1] = queue
    end
    counts[queue][byte(fields[i], -1)] = fields[i + 1]
  end
end
table.sort(queues, before)
local answer = {}
for i = 1, math.min(limit, #queues) do
  answer[#answer + 1] = queues[i]
  for status = 0, 7 do answer[#answer + 1] = counts[queues[i]][status] end
end
return answer
