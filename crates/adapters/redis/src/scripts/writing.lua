-- What `submit` and `commit` share. It reads every task it needs at once, works on Lua values, and writes everything
-- at once at the end (`write_tasks`): so a refusal or an error on the way has changed nothing, and one batch costs a
-- dozen commands rather than a dozen for each task.
--
-- A state, as layout.rs packs it (positions from 1):
--    1      status                         what changes: given whole by every change
--    2- 5   attempt
--    6      place: r(eady) d(elayed) f (in flight) x (done)
--    7-14   due
--   15-22   start deadline of a waiting task, or zeros
--   23-30   arrival number                 what stays
--   31      layout
--   32-47   line
--   48      rank
--   49-57   fingerprint: version, hash
--   58-61   size of the body
--   62-63   length of the queue's name
--   64-     queue's name, then the MessagePack of the state
local LANE, STATE, HEAD, BODY, RESULT, ATTEMPTS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local READY, DELAYED, EXPIRING, IN_FLIGHT = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local ARRIVALS, INBOX, RECORD_KEYS, RECORDS = KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local COUNTS, CREATED = KEYS[15], KEYS[16]

local call, byte, sub = redis.call, string.byte, string.sub
local PENDING, RETRYING = '\0', '\4'
local NO_DEADLINE = '\0\0\0\0\0\0\0\0'
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

-- By task id: the packed state before this script (false if there is none), and as it is now.
local before, now = {}, {}
-- Ids of the tasks that changed, in order.
local changed, is_changed = {}, {}

-- Reads the states of the tasks that the next `n` arguments name.
local function read_tasks(n)
  local last = at + n
  for from = at + 1, last, CHUNK do
    local to = math.min(from + CHUNK - 1, last)
    local values = call('HMGET', STATE, unpack(ARGV, from, to))
    for i = from, to do
      local id = ARGV[i]
      before[id], now[id] = values[i - from + 1], values[i - from + 1]
    end
  end
  at = last
end

local function name_end(value)
  local high, low = byte(value, 62, 63)
  return 63 + high * 256 + low
end

-- Change of the counts, by queue and status.
local counted = {}
local function count(queue, status, by)
  local field = queue .. status
  counted[field] = (counted[field] or 0) + by
end

local waiting_before = {}
local function waiting(queue)
  local n = waiting_before[queue]
  if not n then
    local stored = call('HMGET', COUNTS, queue .. PENDING, queue .. RETRYING)
    n = (tonumber(stored[1]) or 0) + (tonumber(stored[2]) or 0)
    waiting_before[queue] = n
  end
  return n + (counted[queue .. PENDING] or 0) + (counted[queue .. RETRYING] or 0)
end

local function mark(id)
  if not is_changed[id] then
    is_changed[id] = true
    changed[#changed + 1] = id
  end
end

local seq, heads, bodies, arrived, created = nil, {}, {}, {}, {}

-- Why a task cannot be inserted: D(uplicate), R(equest id reused), F (queue full); nil if it can. `rest` is the packed
-- state from position 31 on.
local function refusal(id, rest, len_max)
  local found = now[id]
  if found then
    if sub(found, 49, 49) ~= sub(rest, 19, 19) or sub(found, 50, 57) == sub(rest, 20, 27) then return 'D' end
    return 'R'
  end
  if len_max ~= '' then
    local high, low = byte(rest, 32, 33)
    if waiting(sub(rest, 34, 33 + high * 256 + low)) >= tonumber(len_max) then return 'F' end
  end
end

-- Answers the arrival number.
local function insert(id, created_at, moving, rest, head, body)
  seq = seq + 1
  local number = struct.pack('>I8', seq)
  local value = moving .. number .. rest
  now[id] = value
  mark(id)
  count(sub(value, 64, name_end(value)), sub(value, 1, 1), 1)
  local n = #heads
  heads[n + 1], heads[n + 2] = id, head
  bodies[n + 1], bodies[n + 2] = id, body
  created[n + 1], created[n + 2] = '0', created_at .. id
  arrived[#arrived + 1] = id
  return number
end

local function change(id, moving, state)
  local old = now[id]
  local last = name_end(old)
  now[id] = moving .. sub(old, 23, last) .. state
  mark(id)
  local from, to = sub(old, 1, 1), sub(moving, 1, 1)
  if from ~= to then
    local queue = sub(old, 64, last)
    count(queue, from, -1)
    count(queue, to, 1)
  end
end

-- The places of a task: where it waits or runs, and the index of start deadlines.
local function member(value, id)
  local place, number = sub(value, 6, 6), sub(value, 23, 30)
  if place == 'r' then return place, sub(value, 32, 48) .. sub(value, 7, 14) .. number .. id end
  if place == 'd' then return place, sub(value, 7, 14) .. number .. id end
  return place, id
end

local function deadline(value, id)
  local time = sub(value, 15, 22)
  if time ~= NO_DEADLINE then return time .. sub(value, 23, 30) .. id end
end

local function write_tasks()
  local states = {}
  local added = { r = {}, d = {}, f = {}, x = {} }
  local removed = { r = {}, d = {}, f = {}, x = {} }
  local deadlines, no_deadlines = {}, {}
  for i = 1, #changed do
    local id = changed[i]
    local old, new = before[id], now[id]
    states[2 * i - 1], states[2 * i] = id, new
    -- The rest of what the places depend on never changes.
    if not old or sub(old, 6, 22) ~= sub(new, 6, 22) then
      local old_place, old_member, old_deadline
      if old then
        old_place, old_member = member(old, id)
        old_deadline = deadline(old, id)
      end
      local place, entry = member(new, id)
      if place ~= old_place or entry ~= old_member then
        if old then
          local list = removed[old_place]
          list[#list + 1] = old_member
        end
        local list = added[place]
        list[#list + 1] = '0'
        list[#list + 1] = entry
      end
      local time = deadline(new, id)
      if time ~= old_deadline then
        if old_deadline then no_deadlines[#no_deadlines + 1] = old_deadline end
        if time then
          deadlines[#deadlines + 1] = '0'
          deadlines[#deadlines + 1] = time
        end
      end
    end
  end
  many('HSET', STATE, states)
  many('HSET', HEAD, heads)
  many('HSET', BODY, bodies)
  many('ZADD', CREATED, created)
  many('RPUSH', ARRIVALS, arrived)
  many('ZREM', READY, removed.r)
  many('ZREM', DELAYED, removed.d)
  many('ZREM', IN_FLIGHT, removed.f)
  many('ZREM', EXPIRING, no_deadlines)
  many('ZADD', READY, added.r)
  many('ZADD', DELAYED, added.d)
  many('ZADD', IN_FLIGHT, added.f)
  many('ZADD', EXPIRING, deadlines)
  for field, by in pairs(counted) do
    if by ~= 0 then call('HINCRBY', COUNTS, field, by) end
  end
end
