-- Shared by `submit` and `commit`. A script reads all of its tasks first, works on Lua values, and writes everything at
-- the end (`write_tasks`). So a refusal or an error on the way has changed nothing, and one batch costs a dozen commands
-- rather than a dozen for each task.
--
-- A state, as layout.rs packs it (positions from 1):
--    1- 8  arrival number                  fixed
--    9     layout
--   10-25  line
--   26     rank
--   27-35  fingerprint: version, hash
--   36-39  size of the body
--   40-47  creation time
--   48-49  length of the queue's name
--   50-    queue's name; it ends at e
--   e+1    1 if it has a start deadline, else 0   changing: every change has all of it
--   e+2    place: r(eady) d(elayed) f (in flight) x (done)
--   e+3    status
--   e+4    attempt, 4 bytes
--   e+8    due, 8 bytes
--   e+16   start deadline of a waiting task, 8 bytes, or zeros
--   e+24   the encoded state
--
-- Lua is the cost here, not the commands: making strings, looking up globals, finding the length of a table, calling
-- functions. The parts that run for every task avoid these; lists keep their length at 0.
local LANE, STATE, SPEC, BODY, RESULT, ATTEMPTS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local READY, DELAYED, EXPIRING, IN_FLIGHT = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local ARRIVALS, INBOX, RECORD_KEYS, RECORDS = KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local COUNTS, CREATED, UNIQUE, UNIQUE_OF = KEYS[15], KEYS[16], KEYS[17], KEYS[18]
local CHILDREN, PARENT_OF = KEYS[19], KEYS[20]

local ARGV, call, byte, sub, pack = ARGV, redis.call, string.byte, string.sub, struct.pack
local PENDING, RETRYING = 0, 4
local IS_READY, IS_DELAYED, IS_IN_FLIGHT, IS_DONE = byte('r'), byte('d'), byte('f'), byte('x')
-- Even, because some lists hold pairs; well below the 8000 that Lua's C stack can take.
local CHUNK = 4000

local function many(command, key, args)
  local n = args[0]
  for first = 1, n, CHUNK do
    call(command, key, unpack(args, first, math.min(first + CHUNK - 1, n)))
  end
end

local function add(list, value)
  local n = list[0] + 1
  list[n], list[0] = value, n
end

-- A constant score and a member, or a field and a value.
local function add_two(list, first, second)
  local n = list[0] + 2
  list[n - 1], list[n], list[0] = first, second, n
end

-- By task id: the packed state (false if there is none), and the earlier state of changed tasks.
local now, before = {}, {}
-- Ids of the tasks that changed, in order.
local changed = { [0] = 0 }

-- Reads the states of the tasks that the arguments after `at` name.
local function read_tasks(at, n)
  for from = at + 1, at + n, CHUNK do
    local to = math.min(from + CHUNK - 1, at + n)
    local values = call('HMGET', STATE, unpack(ARGV, from, to))
    for i = from, to do now[ARGV[i]] = values[i - from + 1] end
  end
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

-- Times as they are packed. Lua itself would compare them by the server's locale.
local function is_after(one, other)
  local high, low = struct.unpack('>I4I4', one)
  local other_high, other_low = struct.unpack('>I4I4', other)
  return high > other_high or high == other_high and low > other_low
end

-- Splits the argument `unique` (the time that decides whether an earlier hold has ended; then '-' key, or '+' time key):
-- its field, which is queue and key, and the time or ''. Names of queues have one slash in the middle,
-- so the key begins after the second slash.
local function unique_field(packed, unique)
  local high, low = byte(packed, 40, 41)
  local queue = sub(packed, 42, 41 + high * 256 + low)
  if sub(unique, 9, 9) == '+' then return queue .. '/' .. sub(unique, 18), sub(unique, 10, 17) end
  return queue .. '/' .. sub(unique, 10), ''
end

-- By field: id and time of the task that took it last, or false. Read on demand, because few tasks have a key.
local taken = {}

-- The task that holds the unique key of a new one.
local function holder(packed, unique)
  local field = unique_field(packed, unique)
  local found = taken[field]
  if found == nil then
    found = call('HGET', UNIQUE, field)
    taken[field] = found
  end
  if not found then return end
  local id, till = sub(found, 1, 16), sub(found, 17)
  local state = now[id]
  if state == nil then
    state = call('HGET', STATE, id)
    now[id] = state
  end
  if not state then return end
  if till ~= '' then
    if is_after(till, sub(unique, 1, 8)) then return id end
    return
  end
  local high, low = byte(state, 48, 49)
  if byte(state, 51 + high * 256 + low) ~= IS_DONE then return id end
end

local seq = 0
local uniques, unique_of = { [0] = 0 }, { [0] = 0 }
local specs, bodies, arrived, created = { [0] = 0 }, { [0] = 0 }, { [0] = 0 }, { [0] = 0 }
local children, parent_of = { [0] = 0 }, { [0] = 0 }

-- Why a task cannot be inserted: D(uplicate), R(equest id reused), E(xists) and the id of the task that holds its unique
-- key, F (queue full); nil if it can. `packed` is its state from position 9 on.
local function refusal(id, len_max, unique, packed)
  local found = now[id]
  if found then
    local was, is = byte(found, 27), byte(packed, 19)
    -- The highest bit of the version tells the kind of request. Other versions of one kind cannot be compared.
    if (was >= 128) ~= (is >= 128) then return 'R' end
    if was ~= is or sub(found, 28, 35) == sub(packed, 20, 27) then return 'D' end
    return 'R'
  end
  if unique ~= '' then
    local held_by = holder(packed, unique)
    if held_by then return 'E' .. held_by end
  end
  if len_max ~= '' then
    local high, low = byte(packed, 40, 41)
    if waiting(sub(packed, 42, 41 + high * 256 + low)) >= tonumber(len_max) then return 'F' end
  end
end

-- Answers the arrival number. `parent` is empty where there is none, `body` where it is part of the spec.
local function insert(id, unique, parent, packed, spec, body)
  seq = seq + 1
  local number = pack('>I8', seq)
  before[id] = false
  add(changed, id)
  now[id] = number .. packed
  local high, low = byte(packed, 40, 41)
  local last = 41 + high * 256 + low
  local counts, status = counts_of(sub(packed, 42, last)), byte(packed, last + 3)
  counts[status] = counts[status] + 1
  add_two(specs, id, spec)
  add_two(created, '0', sub(packed, 32, 39) .. id)
  add(arrived, id)
  if body ~= '' then add_two(bodies, id, body) end
  if parent ~= '' then
    add_two(children, '0', parent .. sub(packed, 32, 39) .. id)
    add_two(parent_of, id, parent)
  end
  if unique ~= '' then
    local field, till = unique_field(packed, unique)
    taken[field] = id .. till
    add_two(uniques, field, id .. till)
    add_two(unique_of, id, field)
  end
  return number
end

-- `last` is where the name of the queue ends, `moving` the new state from there on.
local function change(id, old, last, moving)
  if before[id] == nil then
    before[id] = old
    add(changed, id)
  end
  now[id] = sub(old, 1, last) .. moving
  local from, to = byte(old, last + 3), byte(moving, 3)
  if from ~= to then
    local counts = counts_of(sub(old, 50, last))
    counts[from] = counts[from] - 1
    counts[to] = counts[to] + 1
  end
end

-- The entry of a task in the index of its place.
local function entry(value, last, place, id)
  if place == IS_IN_FLIGHT then return id end
  local due, number = sub(value, last + 8, last + 15), sub(value, 1, 8)
  if place == IS_READY then return sub(value, 10, 26) .. due .. number .. id end
  return due .. number .. id
end

-- Its entry in the index of start deadlines; nil if it has none.
local function deadline(value, last, has, id)
  if has == 1 then return sub(value, last + 16, last + 23) .. sub(value, 1, 8) .. id end
end

local function write_tasks()
  local n = changed[0]
  if n == 0 then return end
  local states, deadlines, no_deadlines = { [0] = 2 * n }, { [0] = 0 }, { [0] = 0 }
  local added, removed = {}, {}
  for _, place in ipairs({ IS_READY, IS_DELAYED, IS_IN_FLIGHT }) do
    added[place], removed[place] = { [0] = 0 }, { [0] = 0 }
  end
  for i = 1, n do
    local id = changed[i]
    local old, new = before[id], now[id]
    states[2 * i - 1], states[2 * i] = id, new
    local high, low = byte(new, 48, 49)
    local last = 49 + high * 256 + low
    local has, place = byte(new, last + 1, last + 2)
    local had, old_place = 0, IS_DONE
    if old then
      had, old_place = byte(old, last + 1, last + 2)
    end
    if place ~= old_place then
      if old_place ~= IS_DONE then add(removed[old_place], entry(old, last, old_place, id)) end
      if place ~= IS_DONE then add_two(added[place], '0', entry(new, last, place, id)) end
    elseif place == IS_READY or place == IS_DELAYED then
      -- It may have moved within its place.
      local left, entered = entry(old, last, place, id), entry(new, last, place, id)
      if left ~= entered then
        add(removed[place], left)
        add_two(added[place], '0', entered)
      end
    end
    if has + had > 0 then
      local left, entered = nil, deadline(new, last, has, id)
      if old then left = deadline(old, last, had, id) end
      if left ~= entered then
        if left then add(no_deadlines, left) end
        if entered then add_two(deadlines, '0', entered) end
      end
    end
  end
  many('HSET', STATE, states)
  many('HSET', SPEC, specs)
  many('HSET', BODY, bodies)
  many('HSET', UNIQUE, uniques)
  many('HSET', UNIQUE_OF, unique_of)
  many('ZADD', CREATED, created)
  many('ZADD', CHILDREN, children)
  many('HSET', PARENT_OF, parent_of)
  many('RPUSH', ARRIVALS, arrived)
  for place, index in pairs({ [IS_READY] = READY, [IS_DELAYED] = DELAYED, [IS_IN_FLIGHT] = IN_FLIGHT }) do
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
