-- Erase messages whose ids are read from their records, and free their unique keys.
local function erase_recorded(q, members, records)
    local ids, given, unique = {}, {}, {}
    for i = 1, #members do
        local who, id = match(records[i] or '', '^%d+ %d+ %d+ %S+ %d+ (%a)(%S+)')
        if id then
            push(ids, id)
            push(given, (who == 'g' or who == 'w' or who == 'q') and id or nil)
            push(unique, (who == 'u' or who == 'w') and {members[i], id, 0} or nil)
        end
    end
    erase(q, members, ids, given)
    give_keys(q, unique)
end
