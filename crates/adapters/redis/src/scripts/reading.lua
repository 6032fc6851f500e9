-- Shared by the reading scripts: the rows of tasks by id. Positions as in writing.lua.
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
  local a, b, c, d = byte(value, 36, 39)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

-- A spec is the size of its head, the head, and the body if that is small; a large one is stored apart. Answers of the
-- tasks that exist the specs and the bodies that are stored apart, in their order; without bodies larger than `max`.
local function specs_of(spec_key, body_key, ids, states, max)
  local specs, apart, places = gather(spec_key, ids), {}, {}
  local bodies = {}
  for i = 1, #ids do
    bodies[i] = false
    local spec = specs[i]
    if spec and states[i] then
      local a, b, c, d = byte(spec, 1, 4)
      local head_end = 4 + ((a * 256 + b) * 256 + c) * 256 + d
      local is_apart = #spec == head_end
      if body_size(states[i]) > max then
        if not is_apart then specs[i] = sub(spec, 1, head_end) end
      elseif is_apart then
        apart[#apart + 1] = ids[i]
        places[#apart] = i
      end
    end
  end
  local found = gather(body_key, apart)
  for i = 1, #apart do bodies[places[i]] = found[i] end
  return specs, bodies
end

-- Adds id, state, spec and body of each task to an answer.
local function add_rows(answer, ids, states, specs, bodies)
  local n = #answer
  for i = 1, #ids do
    answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4] = ids[i], states[i], specs[i], bodies[i]
    n = n + 4
  end
  return answer
end
