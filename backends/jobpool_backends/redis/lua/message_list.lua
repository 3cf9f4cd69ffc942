-- The members of one page, in enqueue order. Leased messages are not among them.
-- ARGV: wanted states, as letters (w waiting, d delayed, l claimed, x dead), the sequence to begin after in 16 digits,
-- and how many.
-- Answers: 1 when there is more to ask for, else 0. Then the members, as sequence and priority. After 1, begin after
-- the last one, or ask the same again when there is none.

local PROMOTE = 500

local q, wanted, after, most = keys_of(1), ARGV[1], ARGV[2], tonumber(ARGV[3])

local freed, ended = sweep_claims(q, PROMOTE)
if math.max(freed, ended, promote(q, PROMOTE), promote(post_sets(q), PROMOTE)) >= PROMOTE then
    return {1} -- more due messages are still to be moved
end
local sets = {w = {q.ready, q.posts}, d = {q.later, q.postslater}, l = {q.claimed, q.postsclaimed}, x = {q.buried}}
local runs = {} -- each priority in a set has its own run of sequences
for letter, keys in pairs(sets) do
    for _, key in ipairs(string.find(wanted, letter, 1, true) and keys or {}) do
        for _, first in ipairs(firsts_in(key)) do
            local priority = priority_of(first)
            push(runs, {key, '(' .. priority .. after, format('(%03d', priority + 1)})
        end
    end
end
-- With many runs a piece of each will do: the order is certain up to where the first cut run ends.
local piece, found, certain = math.min(most, math.max(16, math.floor(4000 / math.max(1, #runs)))), {}, nil
for _, run in ipairs(runs) do
    local members = call('ZRANGE', run[1], run[2], run[3], 'BYLEX', 'LIMIT', 0, piece)
    for _, member in ipairs(members) do
        found[#found + 1] = sub(member, 4) .. sub(member, 1, 3)
    end
    if #members == piece and (not certain or found[#found] < certain) then
        certain = found[#found]
    end
end
table.sort(found)
local answers = {certain and 1 or 0}
for _, place in ipairs(found) do
    if #answers > most then
        answers[1] = 1
        break
    end
    if certain and place > certain then
        break
    end
    answers[#answers + 1] = place
end
return answers
