-- KEYS: attempts. ARGV: task, number after which to begin, limit. Answers the attempts of the task as they are packed:
-- number and length of each, 4 bytes, then its record; by number, and of those with the same number the last.
local byte, sub = string.byte, string.sub
local packed = redis.call('HGET', KEYS[1], ARGV[1]) or ''
local after, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
local entries, numbers, at = {}, {}, 1
while at <= #packed do
  local a, b, c, d, e, f, g, h = byte(packed, at, at + 7)
  -- Cut off: the reader reports it.
  if not h then return packed end
  local number, last = ((a * 256 + b) * 256 + c) * 256 + d, at + 7 + ((e * 256 + f) * 256 + g) * 256 + h
  if number > after then
    if not entries[number] then numbers[#numbers + 1] = number end
    entries[number] = sub(packed, at, last)
  end
  at = last + 1
end
table.sort(numbers)
local page = {}
for i = 1, math.min(limit, #numbers) do page[i] = entries[numbers[i]] end
return table.concat(page)
