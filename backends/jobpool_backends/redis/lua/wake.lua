-- Wakes one waiter for queue q. If its fetch leaves messages, that fetch wakes the next. `word`: '' only has it look.

local function wake_one(q, word)
    if call('EXISTS', q.bell) == 0 then
        call('RPUSH', q.bell, word or 1)
    end
end
