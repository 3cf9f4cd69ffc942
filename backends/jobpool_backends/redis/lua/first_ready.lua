-- Answers: the number of the first queue that has something, 0 for none; µs until a message falls due, -1 for none.
-- It asks for the time only when there is something to compare it with.

local soonest = -1
local now
for number = 1, COUNT do
    local q = keys_of(number)
    if call('EXISTS', q.ready, q.delayed) > 0 then
        if call('EXISTS', q.ready) == 1 then
            return {number, 0}
        end
        if not now then
            local clock = call('TIME')
            now = clock[1] * 1000000 + clock[2]
        end
        local left = tonumber(call('ZRANGE', q.delayed, 0, 0, 'WITHSCORES')[2]) - now
        if left <= 0 then
            return {number, 0}
        end
        if soonest < 0 or left < soonest then
            soonest = left
        end
    end
end
return {0, soonest}
