-- Wakes the waiters for the ends of these jobs of queue q (`await.lua`), if there are any.

local function tell(q, ids)
    if #ids == 0 or call('EXISTS', beside(q, 'awaited')) == 0 then
        return
    end
    for _, id in ipairs(ids) do
        local waiters = beside(q, 'await:' .. id)
        for _, token in ipairs(call('SMEMBERS', waiters)) do
            local told = beside(q, 'told:' .. token)
            call('RPUSH', told, id)
            call('PEXPIRE', told, 60000)
        end
        call('DEL', waiters)
    end
end
