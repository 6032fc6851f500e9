-- KEYS: state, spec, body, result. ARGV: ids. Answers id, state, spec, body for each, then the results.
local states = gather(KEYS[1], ARGV)
local specs, bodies = specs_of(KEYS[2], KEYS[3], ARGV, states, math.huge)
local answer, results = add_rows({}, ARGV, states, specs, bodies), gather(KEYS[4], ARGV)
local n = #answer
for i = 1, #ARGV do answer[n + i] = results[i] end
return answer
