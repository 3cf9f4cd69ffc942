-- Wakes one waiter for queue q. If its fetch leaves messages, that fetch wakes the next.

local function wake_one(q)
    if call('EXISTS', q.bell) == 0 then
        call('RPUSH', q.bell, 1)
    end
end
