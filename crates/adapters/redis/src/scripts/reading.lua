-- What the reading scripts share: the rows of tasks by id. Positions as in writing.lua.
local call, byte, sub = redis.call, string.byte, string.sub
local CHUNK = 4000

local function gather(key, fields)
  local found, n = {}, #fields
  for first = 1, n, CHUNK do
    local values = call('HMGET', key, unpack(fields, first, math.min(first + CHUNK - 1, n)))
    for i = 1, #values do found[first + i - 1] = values[i] end
  end
  return found
end

local function body_size(value)
  local a, b, c, d = byte(value, 58, 61)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

-- The bodies of the tasks, in their order; false where there is no task, or its body is larger than `max`.
local function bodies_upto(key, ids, states, max)
  local wanted, places = {}, {}
  for i = 1, #ids do
    if states[i] and body_size(states[i]) <= max then
      wanted[#wanted + 1] = ids[i]
      places[#wanted] = i
    end
  end
  local found, bodies = gather(key, wanted), {}
  for i = 1, #ids do bodies[i] = false end
  for i = 1, #wanted do bodies[places[i]] = found[i] end
  return bodies
end
