-- Lets a waiter be told of the ends of jobs of a queue. ARGV: the waiter's token; ids
-- Answers: 1 when one of them has ended already, else 0

local q = keys_of(1)
for at = 2, #ARGV do
    local place = call('HGET', q.ids, ARGV[at])
    if not place or call('ZSCORE', q.dead, sub(place, 1, 19)) then
        return 1
    end
    local waiters = named_key(q, 'await:' .. ARGV[at])
    call('SADD', waiters, ARGV[1])
    call('PEXPIRE', waiters, 60000)
end
call('SET', named_key(q, 'awaited'), 1, 'PX', 60000)
return 0
