-- Holds a claim for longer. ARGV: its id; ttl in µs; grace in µs, '' = as it was
-- Answers: the claim, as `shown` has it, nil for none.

local q, id, ttl = keys_of(1), ARGV[1], tonumber(ARGV[2])
local text = live_claim(q, id)
if not text then
    return nil
end
local ends, grace = now + ttl, tonumber(ARGV[3] ~= '' and ARGV[3] or sub(text, 33, 46))
local members = members_of(text)
local records, lives, changes = ask('HMGET', q.record, members), {}, {}
for i, member in ipairs(members) do
    local claims, life = tail_of(records[i] or '')
    local longer = prolonged(life, ends + grace)
    if longer ~= life then
        lives[#lives + 1], lives[#lives + 2] = longer, member
        records[i] = with_tail(records[i], claims, longer, id)
        changes[#changes + 1], changes[#changes + 2] = member, records[i]
    end
end
-- Removes nothing; but see promote.lua: behind a command that could, this script may grow.
call('ZREM', q.claims, '')
many('ZADD', q.lives, lives)
many('HSET', q.record, changes)
text = checkout(ends, ttl, grace, members)
call('HSET', q.checkouts, id, text)
call('ZADD', q.claims, ends, id)
return {digits(now), sub(text, 1, HEAD - 1), members, records, bodies_of(q, members)}
