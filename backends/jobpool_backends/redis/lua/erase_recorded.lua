-- Erase messages whose ids are read from their records, and free their unique keys.
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
