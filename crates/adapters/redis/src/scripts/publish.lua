-- Publishes to several channels: in ARGV each is followed by its payload.
for at = 1, #ARGV, 2 do
    redis.call('PUBLISH', ARGV[at], ARGV[at + 1])
end
