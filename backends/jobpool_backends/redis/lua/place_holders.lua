-- Answers: the ids of the messages that hold places of one name.

local q = keys_of(1)
local deadlines, records = live_deadlines(q, holders_in(LEAD.places))
local ids = {}
for i, deadline in ipairs(deadlines) do
    if deadline then
        ids[#ids + 1] = match(records[i], '^%d+ %d+ %d+ %S+ %d+ %a(%S+)', 33)
    end
end
return ids
