-- Messages of queue q that fell due join those that wait, a bounded number of them; how many.
-- Removed before they are added: with its memory full, the server lets a script grow that has removed something.

local function promote(q, most)
    local due = call('ZRANGE', q.delayed, '-inf', now, 'BYSCORE', 'LIMIT', 0, most)
    if #due > 0 then
        many('ZREM', q.delayed, due)
        many('ZREM', q.later, due)
        many('ZADD', q.ready, scored(0, due))
    end
    return #due
end
