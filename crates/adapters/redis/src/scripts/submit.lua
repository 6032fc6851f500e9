-- ARGV: number of tasks, their ids; then for each: id, creation time, maximum length of the queue or '', the changing
-- part of the packed state, the rest of it from position 31 on, head, body.
-- Answers one letter for each task: C and 8 bytes of arrival number, or what `refusal` says.
local n = tonumber(take())
read_tasks(n)
seq = tonumber(call('HGET', LANE, 'seq')) or 0
local first, outcomes = seq, {}
for i = 1, n do
  local id, created_at, len_max, moving, rest, head, body = unpack(ARGV, at + 1, at + 7)
  at = at + 7
  outcomes[i] = refusal(id, rest, len_max) or 'C' .. insert(id, created_at, moving, rest, head, body)
end
if seq > first then
  call('HSET', LANE, 'seq', string.format('%.0f', seq))
  write_tasks()
end
return table.concat(outcomes)
