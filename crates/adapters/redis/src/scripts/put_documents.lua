-- KEYS: documents, names, times, version. ARGV for each put: name, version expected (8 bytes), 'put' or 'remove', time (8
-- bytes, or nothing for none), value. A document is stored as its version, the size of its time, its time and its value.
-- Answers for each whether it was written, and the version stored now.
local call, sub, byte = redis.call, string.sub, string.byte
local answer = {}
for i = 1, #ARGV, 5 do
  local name, expected, time = ARGV[i], ARGV[i + 1], ARGV[i + 3]
  local stored = call('HGET', KEYS[1], name)
  local version = stored and sub(stored, 1, 8) or '\0\0\0\0\0\0\0\0'
  local fits = version == expected
  if fits then
    local timed = stored and sub(stored, 10, 9 + byte(stored, 9)) or ''
    if timed ~= '' then call('ZREM', KEYS[3], timed .. name) end
    version = struct.pack('>I8', call('INCR', KEYS[4]))
    if ARGV[i + 2] == 'put' then
      call('HSET', KEYS[1], name, version .. string.char(#time) .. time .. ARGV[i + 4])
      if not stored then call('ZADD', KEYS[2], '0', name) end
      if time ~= '' then call('ZADD', KEYS[3], '0', time .. name) end
    else
      call('HDEL', KEYS[1], name)
      call('ZREM', KEYS[2], name)
    end
  end
  answer[#answer + 1] = fits and 1 or 0
  answer[#answer + 1] = version
end
return answer
