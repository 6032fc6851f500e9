-- What `submit` and `commit` share. It reads every task it needs at once, works on Lua values, and writes everything
-- at once at the end (`write_tasks`): so a refusal or an error on the way has changed nothing, and one batch costs a
-- dozen commands rather than a dozen for each task.
--
-- A state, as layout.rs packs it (positions from 1):
--    1- 8  arrival number                  what stays
--    9     layout
--   10-25  line
--   26     rank
--   27-35  fingerprint: version, hash
--   36-39  size of the body
--   40-47  creation time
--   48-49  length of the queue's name
--   50-    queue's name; it ends at e
--   e+1    status                          what changes: given whole by every change
--   e+2    attempt, 4 bytes
--   e+6    place: r(eady) d(elayed) f (in flight) x (done)
--   e+7    due, 8 bytes
--   e+15   start deadline of a waiting task, 8 bytes, or zeros
--   e+23   the encoded state
--
-- Making a Lua string is what costs most here, so parts are compared as bytes where that is enough.
local LANE, STATE, SPEC, BODY, RESULT, ATTEMPTS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local READY, DELAYED, EXPIRING, IN_FLIGHT = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local ARRIVALS, INBOX, RECORD_KEYS, RECORDS = KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local COUNTS, CREATED = KEYS[15], KEYS[16]

local call, byte, sub = redis.call, string.byte, string.sub
local PENDING, RETRYING = 0, 4
local IS_READY, IS_DELAYED, IS_DONE = byte('r'), byte('d'), byte('x')
-- Even, because some lists hold pairs; well below the 8000 that Lua's C stack can take.
local CHUNK = 4000

local at = 0
local function take()
  at = at + 1
  return ARGV[at]
end

local function many(command, key, args)
  local n = #args
  for first = 1, n, CHUNK do
    call(command, key, unpack(args, first, math.min(first + CHUNK - 1, n)))
  end
end

-- By task id: the packed state (false if there is none), and of those that changed what it was before.
local now, before = {}, {}
-- Ids of the tasks that changed, in order.
local changed = {}

-- Reads the states of the tasks that the next `n` arguments name.
local function read_tasks(n)
  local last = at + n
  for from = at + 1, last, CHUNK do
    local to = math.min(from + CHUNK - 1, last)
    local values = call('HMGET', STATE, unpack(ARGV, from, to))
    for i = from, to do now[ARGV[i]] = values[i - from + 1] end
  end
  at = last
end

-- Where the name of the queue ends.
local function name_end(value)
  local high, low = byte(value, 48, 49)
  return 49 + high * 256 + low
end

-- Change of the counts, by queue and status.
local counted = {}
local function counts_of(queue)
  local counts = counted[queue]
  if not counts then
    counts = { [0] = 0, 0, 0, 0, 0, 0, 0, 0 }
    counted[queue] = counts
  end
  return counts
end

local waiting_before = {}
local function waiting(queue)
  local n = waiting_before[queue]
  if not n then
    local stored = call('HMGET', COUNTS, queue .. string.char(PENDING), queue .. string.char(RETRYING))
    n = (tonumber(stored[1]) or 0) + (tonumber(stored[2]) or 0)
    waiting_before[queue] = n
  end
  local counts = counts_of(queue)
  return n + counts[PENDING] + counts[RETRYING]
end

local function put(id, value)
  if before[id] == nil then
    before[id] = now[id]
    changed[#changed + 1] = id
  end
  now[id] = value
end

local seq, specs, bodies, arrived, created = nil, {}, {}, {}, {}

-- Why a task cannot be inserted: D(uplicate), R(equest id reused), F (queue full); nil if it can. `packed` is its state
-- from position 9 on.
local function refusal(id, packed, len_max)
  local found = now[id]
  if found then
    if byte(found, 27) ~= byte(packed, 19) or sub(found, 28, 35) == sub(packed, 20, 27) then return 'D' end
    return 'R'
  end
  if len_max ~= '' then
    local high, low = byte(packed, 40, 41)
    if waiting(sub(packed, 42, 41 + high * 256 + low)) >= tonumber(len_max) then return 'F' end
  end
end

-- Answers the arrival number. `body` is empty where it is part of the spec.
local function insert(id, packed, spec, body)
  seq = seq + 1
  local number = struct.pack('>I8', seq)
  local value = number .. packed
  put(id, value)
  local last = name_end(value)
  local counts, status = counts_of(sub(value, 50, last)), byte(value, last + 1)
  counts[status] = counts[status] + 1
  local n = #specs
  specs[n + 1], specs[n + 2] = id, spec
  created[n + 1], created[n + 2] = '0', sub(value, 40, 47) .. id
  arrived[#arrived + 1] = id
  if body ~= '' then
    bodies[#bodies + 1] = id
    bodies[#bodies + 1] = body
  end
  return number
end

-- `moving` is the state from position e+1 on.
local function change(id, moving)
  local old = now[id]
  local last = name_end(old)
  put(id, sub(old, 1, last) .. moving)
  local from, to = byte(old, last + 1), byte(moving, 1)
  if from ~= to then
    local counts = counts_of(sub(old, 50, last))
    counts[from] = counts[from] - 1
    counts[to] = counts[to] + 1
  end
end

-- The entry of a task in the index of its place.
local function entry(value, last, place, id)
  if place == IS_READY then
    return sub(value, 10, 26) .. sub(value, last + 7, last + 14) .. sub(value, 1, 8) .. id
  elseif place == IS_DELAYED then
    return sub(value, last + 7, last + 14) .. sub(value, 1, 8) .. id
  end
  return id
end

-- Its entry in the index of start deadlines; nil if it has none.
local function deadline(value, last, id)
  if byte(value, last + 15) == 0 then return nil end
  return sub(value, last + 15, last + 22) .. sub(value, 1, 8) .. id
end

local function write_tasks()
  local states, deadlines, no_deadlines = {}, {}, {}
  local added, removed = {}, {}
  for _, place in ipairs({ IS_READY, IS_DELAYED, byte('f') }) do
    added[place], removed[place] = {}, {}
  end
  for i = 1, #changed do
    local id = changed[i]
    local old, new = before[id], now[id]
    states[2 * i - 1], states[2 * i] = id, new
    local last = name_end(new)
    local place, old_place, old_entry, old_deadline = byte(new, last + 6), IS_DONE, nil, nil
    if old then
      old_place = byte(old, last + 6)
      old_deadline = deadline(old, last, id)
    end
    local is_entered, is_left = place ~= IS_DONE, old_place ~= IS_DONE
    if place == old_place and is_entered then
      -- It may have moved within its place.
      old_entry = entry(old, last, place, id)
      is_entered = entry(new, last, place, id) ~= old_entry
      is_left = is_entered
    end
    if is_left then
      local list = removed[old_place]
      list[#list + 1] = old_entry or entry(old, last, old_place, id)
    end
    if is_entered then
      local list = added[place]
      list[#list + 1] = '0'
      list[#list + 1] = entry(new, last, place, id)
    end
    local new_deadline = deadline(new, last, id)
    if new_deadline ~= old_deadline then
      if old_deadline then no_deadlines[#no_deadlines + 1] = old_deadline end
      if new_deadline then
        deadlines[#deadlines + 1] = '0'
        deadlines[#deadlines + 1] = new_deadline
      end
    end
  end
  many('HSET', STATE, states)
  many('HSET', SPEC, specs)
  many('HSET', BODY, bodies)
  many('ZADD', CREATED, created)
  many('RPUSH', ARRIVALS, arrived)
  for place, index in pairs({ [IS_READY] = READY, [IS_DELAYED] = DELAYED, [byte('f')] = IN_FLIGHT }) do
    many('ZREM', index, removed[place])
    many('ZADD', index, added[place])
  end
  many('ZREM', EXPIRING, no_deadlines)
  many('ZADD', EXPIRING, deadlines)
  for queue, counts in pairs(counted) do
    for status = 0, 7 do
      if counts[status] ~= 0 then
        call('HINCRBY', COUNTS, queue .. string.char(status), counts[status])
      end
    end
  end
end
