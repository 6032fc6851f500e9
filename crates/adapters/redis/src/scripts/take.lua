-- KEYS: inbox, again, takers, taken, moved. ARGV: taker, limit, first number for an id, bytes after which no more are
-- taken. Messages of lost takers come first and keep their ids; then messages that `BLMOVE` moved; then the inbox,
-- whose oldest is at its right end. Answers id and body of each.
local call = redis.call
local limit, number, room = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local answer = {}
while limit > 0 and room > 0 do
  local id, body
  local entry = call('LPOP', KEYS[2])
  if entry then
    local at = string.find(entry, '\n', 1, true)
    id, body = string.sub(entry, 1, at - 1), string.sub(entry, at + 1)
  else
    body = call('RPOP', KEYS[5]) or call('RPOP', KEYS[1])
    if not body then break end
    id = ARGV[1] .. '-' .. string.format('%.0f', number)
    number = number + 1
  end
  call('HSET', KEYS[4], id, body)
  answer[#answer + 1], answer[#answer + 2] = id, body
  limit, room = limit - 1, room - #body
end
call('SADD', KEYS[3], ARGV[1])
return answer
