-- Removing messages of queue q for good.

-- Drop a bounded number of ids that need not be remembered any longer.
local function sweep(q, most)
    local over = call('ZCOUNT', q.ended, '-inf', now)
    if over > 0 then
        call('ZREMRANGEBYRANK', q.ended, 0, math.min(over, most) - 1)
    end
end

-- Remove all of these messages but their places in sets, which the caller removes. `given`: those of the ids that
-- producers gave.
local function erase(q, members, ids, given)
    write_many('HDEL', q.record, members)
    write_many('HDEL', q.body, members)
    if call('EXISTS', q.notes) == 1 then -- seldom
        write_many('HDEL', q.notes, members)
    end
    write_many('HDEL', q.ids, ids)
    if #given > 0 then
        write_many('ZADD', q.ended, scored(now + MEMORY, given))
        sweep(q, 2 * #given)
    end
end
