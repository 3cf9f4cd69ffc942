-- Answers: the number of the first queue that has something, 0 for none; µs until a message falls due, -1 for none.

local soonest = -1
for number = 1, COUNT do
    local q = keys_of(number)
    if call('EXISTS', q.ready) == 1 then
        return {number, 0}
    end
    local first = call('ZRANGE', q.delayed, 0, 0, 'WITHSCORES')
    if first[2] then
        local left = tonumber(first[2]) - now
        if left <= 0 then
            return {number, 0}
        end
        if soonest < 0 or left < soonest then
            soonest = left
        end
    end
end
return {0, soonest}
