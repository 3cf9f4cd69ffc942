-- Live claims, by id. ARGV: the id to begin after, and how many at most.
-- Answers: the time, and the id after which there is more to look at ('' for none). Then of each claim its id, the head
-- of its checkout, and the number of its messages.

local LOOKS = 1000

local q, most = keys_of(1), tonumber(ARGV[2])
local ids = call('ZRANGE', q.claimids, '(' .. ARGV[1], '+', 'BYLEX', 'LIMIT', 0, LOOKS)
local answers, found = {digits(now), #ids == LOOKS and ids[LOOKS] or ''}, 0
for i, text in ipairs(read_many('HMGET', q.checkouts, ids)) do
    if found < most and text and tonumber(sub(text, 1, 16)) > now then
        found = found + 1
        answers[3 * found], answers[3 * found + 1] = ids[i], sub(text, 1, HEAD - 1)
        answers[3 * found + 2] = (#text - HEAD) / 19
    end
end
return answers
