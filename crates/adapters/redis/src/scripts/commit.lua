-- ARGV: epoch, owner, number, the number before it, cursor; number of ids, the ids of the tasks that the parts of the
-- groups are about, in their order; then each group:
--   parts: the sum of 1 insert, 2 change, 4 inbox, 8 result, 16 ended attempts, 32 records, 64 an insert that must not
--          be made because its change is wrong
--   insert:  as in submit.lua; where it is changed at once, in the state after that
--   change:  of a task that is not inserted: version expected (empty if no version fits), packed state from
--            position e+1 on
--   inbox:   the arrival numbers, 8 bytes each
--   result:  as it is stored
--   ended:   as they are stored, one after the other
--   records: how many, then pairs of key and '+' value, or key and '-'
-- Answers {'ok', outcomes}, {'fenced', epoch} or {'order', last}. Outcomes, one after the other: A(pplied);
-- C and 8 bytes (applied with an insert); an answer of `refusal`; M and the 5 bytes of the version found; N if none was.
local number = ARGV[3]
local lane = call('HMGET', LANE, 'epoch', 'owner', 'commit', 'seq', 'trimmed', 'outcomes')
if lane[1] ~= ARGV[1] or lane[2] ~= ARGV[2] then return { 'fenced', lane[1] or '0' } end
if lane[3] == number and lane[6] then return { 'ok', lane[6] } end
if lane[3] ~= ARGV[4] then return { 'order', lane[3] } end

seq = tonumber(lane[4]) or 0
local ids_count = tonumber(ARGV[6])
read_tasks(6, ids_count)

local results, inbox, attempts, records, record_order = { [0] = 0 }, { [0] = 0 }, {}, {}, { [0] = 0 }
-- The last id and the last argument that were used.
local ids, at = 6, 6 + ids_count

local function take()
  at = at + 1
  return ARGV[at]
end

local function next_id()
  ids = ids + 1
  return ARGV[ids]
end

-- A group of one change, as most are.
local function only_change()
  local id, expected, moving = next_id(), ARGV[at + 1], ARGV[at + 2]
  at = at + 2
  local old = now[id]
  if not old then return 'N' end
  local high, low = byte(old, 48, 49)
  local last = 49 + high * 256 + low
  local found = sub(old, last + 3, last + 7)
  if found ~= expected then return 'M' .. found end
  change(id, old, last, moving)
  return 'A'
end

local function has(parts, bit) return parts % (2 * bit) >= bit end

-- Any group. Consumes all of its arguments, also if it is refused.
local function group(parts)
  local inserted, len_max, unique, parent, packed, spec, body
  if has(parts, 1) then
    inserted, len_max, unique, parent = next_id(), take(), take(), take()
    packed, spec, body = take(), take(), take()
  end
  local changed, expected, moving, numbers, result, ended
  if has(parts, 2) then
    changed, expected, moving = next_id(), take(), take()
  end
  if has(parts, 4) then numbers = take() end
  if has(parts, 8) then result = take() end
  if has(parts, 16) then ended = take() end
  local first_record, last_record = 1, 0
  if has(parts, 32) then
    local count = tonumber(take())
    first_record, last_record = at + 1, at + 2 * count
    at = last_record
  end

  if inserted then
    local refused = refusal(inserted, len_max, unique, packed)
    if refused then return refused end
    if has(parts, 64) then return 'N' end
  end
  local old, last
  if changed then
    old = now[changed]
    if not old then return 'N' end
    local high, low = byte(old, 48, 49)
    last = 49 + high * 256 + low
    local found = sub(old, last + 3, last + 7)
    if found ~= expected then return 'M' .. found end
  end

  -- Nothing is refused from here on.
  local outcome = 'A'
  if inserted then outcome = 'C' .. insert(inserted, unique, parent, packed, spec, body) end
  if changed then change(changed, old, last, moving) end
  local id = changed or inserted
  if numbers then
    for i = 1, #numbers, 8 do add(inbox, sub(numbers, i, i + 7)) end
  end
  if result then add_two(results, id, result) end
  if ended then attempts[id] = (attempts[id] or call('HGET', ATTEMPTS, id) or '') .. ended end
  for i = first_record, last_record, 2 do
    local key = ARGV[i]
    if records[key] == nil then add(record_order, key) end
    records[key] = ARGV[i + 1]
  end
  return outcome
end

local outcomes, groups, args = {}, 0, #ARGV
while at < args do
  local parts = take()
  groups = groups + 1
  outcomes[groups] = parts == '2' and only_change() or group(tonumber(parts))
end
outcomes = table.concat(outcomes)

write_tasks()
many('HSET', RESULT, results)
for id, ended in pairs(attempts) do call('HSET', ATTEMPTS, id, ended) end
for i = 1, inbox[0] do call('ZREMRANGEBYLEX', INBOX, '[' .. inbox[i], '[' .. inbox[i] .. '\255') end

local kept, keys, gone = { [0] = 0 }, { [0] = 0 }, { [0] = 0 }
for i = 1, record_order[0] do
  local key = record_order[i]
  local value = records[key]
  if value == '-' then
    add(gone, key)
  else
    add_two(kept, key, sub(value, 2))
    add_two(keys, '0', key)
  end
end
many('HSET', RECORDS, kept)
many('ZADD', RECORD_KEYS, keys)
many('HDEL', RECORDS, gone)
many('ZREM', RECORD_KEYS, gone)

-- The list of arrivals holds one entry for each number after `trimmed`.
local trimmed = tonumber(lane[5]) or 0
local seen = math.min(tonumber(ARGV[5]), seq)
if seen > trimmed then
  call('LTRIM', ARRIVALS, seen - trimmed, -1)
  trimmed = seen
end
call('HSET', LANE, 'commit', number, 'outcomes', outcomes, 'seq', string.format('%.0f', seq), 'trimmed',
  string.format('%.0f', trimmed))
return { 'ok', outcomes }
