-- KEYS: state, spec, body, index. ARGV: largest body, limit, then one of
--   'range', first, last    entries of the index between two bounds
--   'lines', first          the first entry of each line
--   'ids', ids…             the tasks of these ids that exist
-- Answers whether there is more, then id, state, spec, body for each task. Every entry of an index ends with the id.
local body_max, limit, kind = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local ids, more = {}, 0
if kind == 'range' then
  local entries = call('ZRANGEBYLEX', KEYS[4], ARGV[4], ARGV[5], 'LIMIT', 0, limit + 1)
  if #entries > limit then more = 1 end
  for i = 1, math.min(#entries, limit) do ids[i] = sub(entries[i], -16) end
elseif kind == 'lines' then
  local from = ARGV[4]
  while true do
    local entry = call('ZRANGEBYLEX', KEYS[4], from, '+', 'LIMIT', 0, 1)[1]
    if not entry then break end
    if #ids == limit then
      more = 1
      break
    end
    ids[#ids + 1] = sub(entry, -16)
    -- After a line comes its rank, which is far below 255.
    from = '[' .. sub(entry, 1, 16) .. '\255'
  end
else
  for i = 4, #ARGV do ids[i - 3] = ARGV[i] end
end
local states = gather(KEYS[1], ids)
local specs, bodies = specs_of(KEYS[2], KEYS[3], ids, states, body_max)
return add_rows({ more }, ids, states, specs, bodies)
