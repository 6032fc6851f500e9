-- One page of the finished tasks of a lane, oldest first. KEYS: created, state. ARGV: first and last bound in the index
-- of creation times, most entries to look at.
-- Answers the last entry looked at, or '' at the end; then id and state of each.
local limit = tonumber(ARGV[3])
local entries = call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, limit + 1)
local ids = {}
for i = 1, math.min(#entries, limit) do ids[i] = sub(entries[i], -16) end
local states = gather(KEYS[2], ids)
local answer, n = { #entries > limit and entries[limit] or '' }, 1
for i = 1, #ids do
  local state = states[i]
  if state then
    local high, low = byte(state, 48, 49)
    if sub(state, 51 + high * 256 + low, 51 + high * 256 + low) == 'x' then
      answer[n + 1], answer[n + 2] = ids[i], state
      n = n + 2
    end
  end
end
return answer
