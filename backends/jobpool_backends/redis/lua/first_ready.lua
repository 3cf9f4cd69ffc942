-- Answers: the number of the first queue that has something, 0 for none; µs until a message falls due, -1 for none.

local soonest = -1
for number = 1, COUNT do
    local q = keys_of(number)
    local due = call('EXISTS', q.ready) == 1 and now or call('ZRANGE', q.delayed, 0, 0, 'WITHSCORES')[2]
    if due and tonumber(due) <= now then
        return {number, 0}
    end
    if due and (soonest < 0 or due - now < soonest) then
        soonest = due - now
    end
end
return {0, soonest}
