-- Wakes the waiters for the ends of these jobs of queue q (`await_ended.lua`), if there are any.

local function notify_ended(q, ids)
    if #ids == 0 or call('EXISTS', named_key(q, 'awaited')) == 0 then
        return
    end
    for _, id in ipairs(ids) do
        local waiters = named_key(q, 'await:' .. id)
        for _, token in ipairs(call('SMEMBERS', waiters)) do
            local told = named_key(q, 'told:' .. token)
            call('RPUSH', told, id)
            call('PEXPIRE', told, 60000)
        end
        call('DEL', waiters)
    end
end
