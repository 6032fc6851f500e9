-- ARGV: number of tasks, their ids; then for each: maximum length of the queue or '', packed state from position 9 on,
-- spec, body or ''.
-- Answers one letter for each task: C and 8 bytes of arrival number, or what `refusal` says.
local n = tonumber(ARGV[1])
read_tasks(1, n)
seq = tonumber(call('HGET', LANE, 'seq')) or 0
local first, at, outcomes = seq, n + 1, {}
for i = 1, n do
  local id, packed = ARGV[i + 1], ARGV[at + 2]
  outcomes[i] = refusal(id, packed, ARGV[at + 1]) or 'C' .. insert(id, packed, ARGV[at + 3], ARGV[at + 4])
  at = at + 4
end
if seq > first then
  call('HSET', LANE, 'seq', string.format('%.0f', seq))
  write_tasks()
end
return table.concat(outcomes)
