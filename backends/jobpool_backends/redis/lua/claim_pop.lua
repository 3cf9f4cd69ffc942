-- Takes free messages for good. ARGV: how many at most
-- Answers: members, records, bodies; 0 when nothing is free, 1 when there is more to look at: ask again.

local q = keys_of(1)
sweep_claims(q, SWEEP)
call('HDEL', q.record, '') -- as `check_writable` does
local found = select_free(q, tonumber(ARGV[1]), 0)
if #found.members == 0 then
    return found.again and 1 or 0
end
write_many('ZREM', q.lives, found.members)
erase_recorded(q, found.members, found.records)
end_members(q, found.members, 'cancelled')
end_batches(q)
return {found.members, found.records, found.bodies}
