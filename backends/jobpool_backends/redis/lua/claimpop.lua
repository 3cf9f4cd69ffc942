-- Takes free messages for good. ARGV: how many at most
-- Answers: members, records, bodies; 0 when nothing is free, 1 when there is more to look at: ask again.

local q = keys_of(1)
sweep_claims(q, SWEEP)
call('HDEL', q.record, '') -- as `try` does
local found = choose(q, tonumber(ARGV[1]), 0)
if #found.members == 0 then
    return found.again and 1 or 0
end
many('ZREM', q.lives, found.members)
erase_recorded(q, found.members, found.records)
end_members(q, found.members, 'cancelled')
finish(q)
return {found.members, found.records, found.bodies}
