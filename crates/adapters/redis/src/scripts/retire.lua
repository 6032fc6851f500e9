-- KEYS: lane, state, spec, body, result, attempts, arrivals, counts, created, unique, uniqueof, children, parentof. ARGV:
-- how many tasks to strip, their ids, then the ids of those to forget. Unfinished tasks are skipped.
-- Positions as in writing.lua.
local LANE, STATE, SPEC, BODY, RESULT, ATTEMPTS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local ARRIVALS, COUNTS, CREATED, UNIQUE, UNIQUE_OF = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local CHILDREN, PARENT_OF = KEYS[12], KEYS[13]
local strips = tonumber(ARGV[1])

-- The finished tasks among some arguments. Each comes once, so that none is counted twice.
local function finished(first, last)
  local ids, seen = {}, {}
  for i = first, last do
    local id = ARGV[i]
    if not seen[id] then
      seen[id] = true
      ids[#ids + 1] = id
    end
  end
  local states, found, n = gather(STATE, ids), {}, 0
  for i = 1, #ids do
    local state = states[i]
    if state then
      local high, low = byte(state, 48, 49)
      local last = 49 + high * 256 + low
      if sub(state, last + 2, last + 2) == 'x' then
        n = n + 1
        found[n] = { id = ids[i], state = state, last = last }
      end
    end
  end
  return found
end

local function drop_data(tasks)
  for i = 1, #tasks do
    local id = tasks[i].id
    local parent = call('HGET', PARENT_OF, id)
    if parent then
      call('ZREM', CHILDREN, parent .. sub(tasks[i].state, 40, 47) .. id)
      call('HDEL', PARENT_OF, id)
    end
    call('HDEL', BODY, id)
    call('HDEL', RESULT, id)
    call('HDEL', ATTEMPTS, id)
  end
end

-- The head of the spec stays. A body of size 0 was stripped: no other body has size 0.
local stripped = finished(2, strips + 1)
for i = 1, #stripped do
  local id, state = stripped[i].id, stripped[i].state
  if body_size(state) > 0 then
    local spec = call('HGET', SPEC, id)
    local a, b, c, d = byte(spec, 1, 4)
    call('HSET', SPEC, id, sub(spec, 1, 4 + ((a * 256 + b) * 256 + c) * 256 + d))
    call('HSET', STATE, id, sub(state, 1, 35) .. '\0\0\0\0' .. sub(state, 40))
  end
end
drop_data(stripped)

-- The list of arrivals holds one entry for each number after `trimmed`. The entry of a forgotten task becomes empty, as
-- the entry of a finished command does. Otherwise it would name the next task with this id.
local forgotten = finished(strips + 2, #ARGV)
local trimmed = tonumber(call('HGET', LANE, 'trimmed')) or 0
for i = 1, #forgotten do
  local id, state, last = forgotten[i].id, forgotten[i].state, forgotten[i].last
  local place = struct.unpack('>I8', state) - trimmed - 1
  if place >= 0 then call('LSET', ARRIVALS, place, '') end
  call('HINCRBY', COUNTS, sub(state, 50, last) .. sub(state, last + 3, last + 3), -1)
  call('ZREM', CREATED, sub(state, 40, 47) .. id)
  call('HDEL', SPEC, id)
  call('HDEL', STATE, id)
end
drop_data(forgotten)

-- Another task may have taken a unique key since.
local ids = {}
for i = 1, #forgotten do ids[i] = forgotten[i].id end
local fields = gather(UNIQUE_OF, ids)
for i = 1, #ids do
  local field = fields[i]
  if field then
    local holder = call('HGET', UNIQUE, field)
    if holder and sub(holder, 1, 16) == ids[i] then call('HDEL', UNIQUE, field) end
    call('HDEL', UNIQUE_OF, ids[i])
  end
end
