-- ARGV: number of tasks, their ids; then for each: maximum length of the queue or '', unique key (as in `unique_field`)
-- or '', parent or '', packed state from position 9 on, spec, body or ''.
-- Answers for each task: C and 8 bytes of arrival number, or an answer of `refusal`.
local n = tonumber(ARGV[1])
read_tasks(1, n)
seq = tonumber(call('HGET', LANE, 'seq')) or 0
local first, at, outcomes = seq, n + 1, {}
for i = 1, n do
  local id, unique, packed = ARGV[i + 1], ARGV[at + 2], ARGV[at + 4]
  outcomes[i] = refusal(id, ARGV[at + 1], unique, packed)
    or 'C' .. insert(id, unique, ARGV[at + 3], packed, ARGV[at + 5], ARGV[at + 6])
  at = at + 6
end
if seq > first then
  call('HSET', LANE, 'seq', string.format('%.0f', seq))
  write_tasks()
end
return table.concat(outcomes)
