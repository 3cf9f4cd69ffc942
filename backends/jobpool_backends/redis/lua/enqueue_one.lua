-- Adds one message that is due now, with a minted id and no key or past. It does the same as add.lua, at less cost.
-- ARGV: the queue's name
--     id, priority, end of the record, body: of the message

local q, seq, stamp = keys_of(1), now, digits(now)
if call('HMGET', q.ids, ARGV[2])[1] then
    return -- a repeated call
end
local last = call('SET', LEAD.last, stamp, 'GET')
if (tonumber(last or 0) or 0) >= now then
    seq = tonumber(last) + 1
    call('SET', LEAD.last, digits(seq))
end
local member = ARGV[3] .. format('%016.0f', seq)
call('ZADD', q.ready, 0, member)
call('SADD', q.queues, ARGV[1])
wake_one(q)
call('HSET', q.body, member, ARGV[5])
call('HSET', q.record, member, '0 0 0 - ' .. stamp .. ' ' .. ARGV[4])
call('HSET', q.ids, ARGV[2], member .. ' ' .. ARGV[1]) -- last, as in add.lua
