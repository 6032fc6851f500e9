-- KEYS: state, head, body, result. ARGV: ids. Answers state, head, body, result for each.
local states, heads, bodies, results =
  gather(KEYS[1], ARGV), gather(KEYS[2], ARGV), gather(KEYS[3], ARGV), gather(KEYS[4], ARGV)
local answer = {}
for i = 1, #ARGV do
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4] = states[i], heads[i], bodies[i], results[i]
end
return answer
