-- ARGV: epoch, owner, number, the number before it, cursor; number of ids, the ids of the tasks that the groups are
-- about, in their order (of an insert and its change once, if they are about the same task); then each group:
--   parts: the sum of 1 insert, 2 change, 4 inbox, 8 result, 16 ended attempts, 32 records, 64 the change is about
--          another task than the insert
--   insert:  as in submit.lua
--   change:  version expected (empty if it can never be right), packed state from position e+1 on
--   inbox:   the arrival numbers, 8 bytes each
--   result:  as it is stored
--   ended:   as they are stored, one after the other
--   records: how many, then pairs of key and '+' value, or key and '-'
-- Answers {'ok', outcomes}, {'fenced', epoch} or {'order', last}. Outcomes, one after the other: A(pplied);
-- C and 8 bytes (applied with an insert); what `refusal` says; M and the 5 bytes of the version found; N if none was.
local epoch, owner, number, previous, cursor = take(), take(), take(), take(), take()
local lane = call('HMGET', LANE, 'epoch', 'owner', 'commit', 'seq', 'trimmed', 'outcomes')
if lane[1] ~= epoch or lane[2] ~= owner then return { 'fenced', lane[1] or '0' } end
if lane[3] == number and lane[6] then return { 'ok', lane[6] } end
if lane[3] ~= previous then return { 'order', lane[3] } end

seq = tonumber(lane[4]) or 0
local ids = at + 1
read_tasks(tonumber(take()))

local results, attempts, inbox, records, record_order = {}, {}, {}, {}, {}

local function next_id()
  ids = ids + 1
  return ARGV[ids]
end

local function has(parts, bit) return parts % (2 * bit) >= bit end

-- Takes the arguments of a group whole, whatever becomes of it.
local function group(parts)
  local inserted, len_max, packed, spec, body
  if has(parts, 1) then
    inserted = next_id()
    len_max, packed, spec, body = take(), take(), take(), take()
  end
  local id, expected, moving, numbers, result, ended
  if has(parts, 2) then
    id = inserted
    if not inserted or has(parts, 64) then id = next_id() end
    expected, moving = take(), take()
  end
  if has(parts, 4) then numbers = take() end
  if has(parts, 8) then result = take() end
  if has(parts, 16) then ended = take() end
  local first_record, last_record = 1, 0
  if has(parts, 32) then
    local pairs_of = tonumber(take())
    first_record, last_record = at + 1, at + 2 * pairs_of
    at = last_record
  end

  if inserted then
    local refused = refusal(inserted, packed, len_max)
    if refused then return refused end
  end
  if id then
    local found
    if id == inserted then
      local high, low = byte(packed, 40, 41)
      local last = 41 + high * 256 + low
      if sub(packed, last + 1, last + 5) ~= expected then return 'N' end
    elseif not now[id] then
      return 'N'
    else
      local last = name_end(now[id])
      found = sub(now[id], last + 1, last + 5)
      if found ~= expected then return 'M' .. found end
    end
  end

  -- Nothing is refused from here on.
  local outcome = 'A'
  if inserted then outcome = 'C' .. insert(inserted, packed, spec, body) end
  if id then change(id, moving) end
  if numbers then
    for i = 1, #numbers, 8 do inbox[#inbox + 1] = sub(numbers, i, i + 7) end
  end
  if result then
    results[#results + 1] = id
    results[#results + 1] = result
  end
  if ended then attempts[id] = (attempts[id] or call('HGET', ATTEMPTS, id) or '') .. ended end
  for i = first_record, last_record, 2 do
    local key = ARGV[i]
    if records[key] == nil then record_order[#record_order + 1] = key end
    records[key] = ARGV[i + 1]
  end
  return outcome
end

local outcomes = {}
while at < #ARGV do
  outcomes[#outcomes + 1] = group(tonumber(take()))
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
