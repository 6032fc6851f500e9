-- KEYS: lane, arrivals, inbox, state, spec, body. ARGV: largest body, limit, last number seen.
-- Answers {'gap'}, or {'ok', highest number, number covered, then for each row: id, state, spec, body of a task, or
-- '', 8 bytes of number and command, false, false of a command}.
local body_max, limit, after = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
-- Finished commands leave holes. At most this many pages of holes are skipped before an empty answer.
local PAGES_MAX = 16
local lane = call('HMGET', KEYS[1], 'seq', 'trimmed')
local seq, trimmed = tonumber(lane[1]) or 0, tonumber(lane[2]) or 0
if after < trimmed then return { 'gap' } end

local ids, rows, covered = {}, {}, math.min(after, seq)
for _ = 1, PAGES_MAX do
  if #rows >= limit or covered >= seq then break end
  local entries = call('LRANGE', KEYS[2], covered - trimmed, covered - trimmed + limit - 1)
  local first, last = struct.pack('>I8', covered + 1), struct.pack('>I8', covered + #entries)
  local commands, command = call('ZRANGEBYLEX', KEYS[3], '[' .. first, '[' .. last .. '\255'), 1
  for i = 1, #entries do
    if #rows >= limit then break end
    covered = covered + 1
    if entries[i] ~= '' then
      ids[#ids + 1] = entries[i]
      rows[#rows + 1] = ''
    elseif commands[command] and sub(commands[command], 1, 8) == struct.pack('>I8', covered) then
      rows[#rows + 1] = commands[command]
      command = command + 1
    end
  end
end

local states = gather(KEYS[4], ids)
local specs, bodies = specs_of(KEYS[5], KEYS[6], ids, states, body_max)
local answer, task = { 'ok', lane[1] or '0', string.format('%.0f', covered) }, 0
for i = 1, #rows do
  local n = #answer
  if rows[i] == '' then
    task = task + 1
    answer[n + 1], answer[n + 2], answer[n + 3] = ids[task], states[task], specs[task]
    answer[n + 4] = bodies[task]
  else
    answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4] = '', rows[i], false, false
  end
end
return answer
