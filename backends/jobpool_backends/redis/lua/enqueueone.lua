-- Adds one message that is due now, with a minted id and no key or past. It does the same as add.lua, at less cost.
-- ARGV: the queue's name
--     id, priority, end of the record, body: of the message

local q = keys_of(1)
local seq = math.max(tonumber(call('GET', LEAD.last) or 0), now - 1) + 1
local member = ARGV[3] .. format('%016.0f', seq)
if call('HSETNX', q.ids, ARGV[2], member .. ' ' .. ARGV[1]) == 1 then
    call('HSET', q.record, member, '0 0 0 - ' .. digits(now) .. ' ' .. ARGV[4])
    call('HSET', q.body, member, ARGV[5])
    call('SADD', q.queues, ARGV[1])
    call('ZADD', q.ready, 0, member)
    call('SET', LEAD.last, digits(seq))
    ring(q)
end
