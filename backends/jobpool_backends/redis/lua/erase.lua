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

-- The same, with ids read from the records; it frees their unique keys.
local function erase_recorded(q, members, records)
    local ids, given, unique, unique_ids, lasts = {}, {}, {}, {}, {}
    for i = 1, #members do
        local who, id = match(records[i] or '', '^%d+ %d+ %d+ %S+ %d+ (%a)(%S+)')
        if id then
            ids[#ids + 1] = id
            given[#given + 1] = (who == 'g' or who == 'w' or who == 'q') and id or nil
            if who == 'u' or who == 'w' then
                unique[#unique + 1], unique_ids[#unique_ids + 1], lasts[#lasts + 1] = members[i], id, 0
            end
        end
    end
    erase(q, members, ids, given)
    if #unique > 0 then
        give_keys(q, unique, unique_ids, lasts)
    end
end
