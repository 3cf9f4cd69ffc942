-- Move at most `most` due messages of queue q to those that wait; return how many.

local function promote(q, most)
    local due = call('ZRANGE', q.delayed, '-inf', now, 'BYSCORE', 'LIMIT', 0, most)
    if #due > 0 then
        try(q.delayed)
        many('ZADD', q.ready, scored(0, due))
        many('ZREM', q.delayed, due)
        many('ZREM', q.later, due)
    end
    return #due
end
