-- ARGV: epoch, owner, number, the number before it, cursor; number of tasks and their ids; then each group:
--   how many arguments follow, parts (1 insert, 2 change, 4 inbox, 8 records)
--   insert: as in submit.lua
--   change: id, version expected (empty if it can never be right), the changing part of the packed state, the
--           MessagePack of the state, result or '', ended attempts (packed one after the other) or ''
--   inbox:  the arrival numbers, 8 bytes each
--   records: pairs of key and '+' value, or key and '-'
-- Answers {'ok', outcomes}, {'fenced', epoch} or {'order', last}. Outcomes, one after the other: A(pplied);
-- C and 8 bytes (applied with an insert); what `refusal` says; M and the 5 bytes of the version found; N if none was.
local epoch, owner, number, previous, cursor = take(), take(), take(), take(), take()
local lane = call('HMGET', LANE, 'epoch', 'owner', 'commit', 'seq', 'trimmed', 'outcomes')
if lane[1] ~= epoch or lane[2] ~= owner then return { 'fenced', lane[1] or '0' } end
if lane[3] == number and lane[6] then return { 'ok', lane[6] } end
if lane[3] ~= previous then return { 'order', lane[3] } end

seq = tonumber(lane[4]) or 0
read_tasks(tonumber(take()))

local results, attempts, inbox, records, record_order = {}, {}, {}, {}, {}

local function group(parts, last)
  local new, outcome, inserted = nil, 'A', nil
  if parts % 2 == 1 then
    new = at
    at = at + 7
    outcome = refusal(ARGV[new + 1], ARGV[new + 5], ARGV[new + 3])
    if outcome then return outcome end
    inserted = ARGV[new + 1]
  end
  local id, expected, moving, state, result, ended
  if parts % 4 >= 2 then
    id, expected, moving, state, result, ended = unpack(ARGV, at + 1, at + 6)
    at = at + 6
    local found
    if id == inserted then
      found = sub(ARGV[new + 4], 1, 5)
    elseif now[id] then
      found = sub(now[id], 1, 5)
    end
    if found ~= expected then
      return found and id ~= inserted and 'M' .. found or 'N'
    end
  end

  -- Nothing is refused from here on.
  outcome = 'A'
  if inserted then
    outcome = 'C' .. insert(inserted, ARGV[new + 2], ARGV[new + 4], ARGV[new + 5], ARGV[new + 6], ARGV[new + 7])
  end
  if id then
    change(id, moving, state)
    if result ~= '' then
      results[#results + 1] = id
      results[#results + 1] = result
    end
    if ended ~= '' then
      attempts[id] = (attempts[id] or call('HGET', ATTEMPTS, id) or '') .. ended
    end
  end
  if parts % 8 >= 4 then
    local numbers = take()
    for i = 1, #numbers, 8 do inbox[#inbox + 1] = sub(numbers, i, i + 7) end
  end
  if parts >= 8 then
    for i = at + 1, last, 2 do
      if records[ARGV[i]] == nil then record_order[#record_order + 1] = ARGV[i] end
      records[ARGV[i]] = ARGV[i + 1]
    end
  end
  return outcome
end

local outcomes = {}
while at < #ARGV do
  local size = tonumber(take())
  local last = at + size
  outcomes[#outcomes + 1] = group(tonumber(take()), last)
  at = last
end
outcomes = table.concat(outcomes)

write_tasks()
many('HSET', RESULT, results)
for id, ended in pairs(attempts) do call('HSET', ATTEMPTS, id, ended) end
for i = 1, #inbox do call('ZREMRANGEBYLEX', INBOX, '[' .. inbox[i], '[' .. inbox[i] .. '\255') end

local put, keys, gone = {}, {}, {}
for i = 1, #record_order do
  local key = record_order[i]
  local value = records[key]
  if value == '-' then
    gone[#gone + 1] = key
  else
    put[#put + 1] = key
    put[#put + 1] = sub(value, 2)
    keys[#keys + 1] = '0'
    keys[#keys + 1] = key
  end
end
many('HSET', RECORDS, put)
many('ZADD', RECORD_KEYS, keys)
many('HDEL', RECORDS, gone)
many('ZREM', RECORD_KEYS, gone)

-- The list of arrivals holds one entry for each number after `trimmed`.
local trimmed = tonumber(lane[5]) or 0
local seen = math.min(tonumber(cursor), seq)
if seen > trimmed then
  call('LTRIM', ARRIVALS, seen - trimmed, -1)
  trimmed = seen
end
call('HSET', LANE, 'commit', number, 'outcomes', outcomes, 'seq', string.format('%.0f', seq), 'trimmed',
  string.format('%.0f', trimmed))
return { 'ok', outcomes }
