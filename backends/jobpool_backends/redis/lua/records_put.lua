-- Writes records. ARGV: for how long they last, in µs; then key and value of each

local lasts, values, ends, names = tonumber(ARGV[1]), {}, {}, {}
for at = 2, #ARGV, 2 do
    push_pair(values, ARGV[at], ARGV[at + 1])
    push_pair(ends, now + lasts, ARGV[at])
    push_pair(names, 0, ARGV[at])
end
-- Some of those that have ended make room: more than may have come since the last time.
local over = call('ZRANGE', LEAD.ends, '-inf', now, 'BYSCORE', 'LIMIT', 0, #ARGV + 100)
write_many('HDEL', LEAD.values, over)
write_many('ZREM', LEAD.names, over)
write_many('ZREM', LEAD.ends, over)
write_many('HSET', LEAD.values, values)
write_many('ZADD', LEAD.names, names)
write_many('ZADD', LEAD.ends, ends)
local most = math.ceil(lasts / 1000) + 1
for _, key in pairs(LEAD) do
    if call('PTTL', key) < most then
        call('PEXPIRE', key, digits(most))
    end
end
