-- One page of the tasks of a lane, newest first. KEYS: created, state, spec, body, children. ARGV: first and last bound in
-- the index of creation times, most entries to look at, most rows to answer, largest body, most bytes of bodies,
-- statuses wanted or '', namespace or '', queue or '', parent or ''.
-- Answers the last entry looked at, or '' at the end of the lane; then id, state, spec, body for each row.
local looks_max, rows_max = tonumber(ARGV[3]), tonumber(ARGV[4])
local body_max, bytes_max = tonumber(ARGV[5]), tonumber(ARGV[6])
local statuses, namespace, queue = ARGV[7], ARGV[8], ARGV[9]

local index, newest, oldest, parent = KEYS[1], ARGV[1], ARGV[2], ARGV[10]
if parent ~= '' then
  -- The same bounds among the children of one task.
  index = KEYS[5]
  newest = newest == '+' and '[' .. parent .. string.rep('\255', 25) or '(' .. parent .. sub(newest, 2)
  oldest = '[' .. parent .. (oldest == '-' and '' or sub(oldest, 2))
end
local entries = call('ZREVRANGEBYLEX', index, newest, oldest, 'LIMIT', 0, looks_max + 1)
local looked_at = {}
for i = 1, math.min(#entries, looks_max) do looked_at[i] = sub(entries[i], -16) end
local all = gather(KEYS[2], looked_at)

local function wanted(state)
  if not state then return true end
  local high, low = byte(state, 48, 49)
  local last = 49 + high * 256 + low
  if statuses ~= '' and not string.find(statuses, sub(state, last + 3, last + 3), 1, true) then return false end
  if namespace == '' and queue == '' then return true end
  local name = sub(state, 50, last)
  local slash = string.find(name, '/', 1, true)
  return (namespace == '' or sub(name, 1, slash - 1) == namespace)
    and (queue == '' or sub(name, slash + 1) == queue)
end

local ids, states, bytes, last = {}, {}, 0, 0
while last < #looked_at and #ids < rows_max and bytes < bytes_max do
  last = last + 1
  local state = all[last]
  if wanted(state) then
    local n = #ids + 1
    ids[n], states[n] = looked_at[last], state
    if state then
      local size = body_size(state)
      if size <= body_max then bytes = bytes + size end
    end
  end
end

local specs, bodies = specs_of(KEYS[3], KEYS[4], ids, states, body_max)
return add_rows({ last < #entries and sub(entries[last], -24) or '' }, ids, states, specs, bodies)
