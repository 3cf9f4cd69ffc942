-- Lets a batch end when its last member has. ARGV: its id; 1 if it was cancelled as a whole

local q, batch = keys_of(1), ARGV[1]
local key = shared(q, 'batch:' .. batch)
local open, ended = unpack(call('HMGET', key, 'open', 'ended'))
if open and not ended then
    call('HSET', key, 'open', 0, unpack(ARGV[2] == '1' and {'stopped', 1} or {}))
    touch(batch)
    end_batches(q)
end
