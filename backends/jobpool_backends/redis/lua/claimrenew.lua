-- Holds a claim for longer. ARGV: its id, ttl in µs, grace in µs ('' = as it was).
-- Answers: the claim, as `shown` has it, nil for none.

local q, id, ttl = keys_of(1), ARGV[1], tonumber(ARGV[2])
local text = live_claim(q, id)
if not text then
    return nil
end
local grace = tonumber(ARGV[3] ~= '' and ARGV[3] or sub(text, 33, 46))
local members = members_of(text)
local records, lives, changes = ask('HMGET', q.record, members), {}, {}
for i, member in ipairs(members) do
    local claims, life = tail_of(records[i] or '')
    local longer = prolonged(life, now + ttl + grace)
    if longer ~= life then
        put(lives, longer, member)
        records[i] = with_tail(records[i], claims, longer, id)
        put(changes, member, records[i])
    end
end
-- Removes nothing, but lets this script add while the memory is full: see base.lua.
call('ZREM', q.claims, '')
many('ZADD', q.lives, lives)
many('HSET', q.record, changes)
local head = check_out(q, id, ttl, grace, members)
return {digits(now), head, members, records, bodies_of(q, members)}
