-- Move at most `most` due messages of queue q to those that wait; return how many.
-- Remove before adding: while its memory is full, the server lets a script add only after a command that may remove.

local function promote(q, most)
    local due = call('ZRANGE', q.delayed, '-inf', now, 'BYSCORE', 'LIMIT', 0, most)
    if #due > 0 then
        many('ZREM', q.delayed, due)
        many('ZREM', q.later, due)
        many('ZADD', q.ready, scored(0, due))
    end
    return #due
end
