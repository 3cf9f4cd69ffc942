-- Holds a claim for longer. ARGV: its id, ttl in µs, grace in µs ('' = as it was).
-- Answers: the claim, as `shown` has it, nil for none.

local q, id, ttl = keys_of(1), ARGV[1], tonumber(ARGV[2])
local text = live_claim(q, id)
if not text then
    return nil
end
local grace = tonumber(ARGV[3] ~= '' and ARGV[3] or sub(text, 33, 46))
local members = members_of(text)
local records, lives, changes = read_many('HMGET', q.record, members), {}, {}
for i, member in ipairs(members) do
    local claims, life = tail_of(records[i] or '')
    local longer = prolonged(life, now + ttl + grace)
    if longer ~= life then
        push_pair(lives, longer, member)
        records[i] = with_tail(records[i], claims, longer, id)
        push_pair(changes, member, records[i])
    end
end
-- Removes nothing, but lets this script add while the memory is full: see common.lua.
call('ZREM', q.claims, '')
write_many('ZADD', q.lives, lives)
write_many('HSET', q.record, changes)
local head = check_out(q, id, ttl, grace, members)
return {digits(now), head, members, records, bodies_of(q, members)}
