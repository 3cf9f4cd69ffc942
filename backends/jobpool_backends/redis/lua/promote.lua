-- Move at most `most` due messages of queue q to those that wait; return how many.

local function promote(q, most)
    local due = call('ZRANGE', q.delayed, '-inf', now, 'BYSCORE', 'LIMIT', 0, most)
    if #due > 0 then
        check_writable(q.delayed)
        write_many('ZADD', q.ready, scored(0, due))
        write_many('ZREM', q.delayed, due)
        write_many('ZREM', q.later, due)
    end
    return #due
end
