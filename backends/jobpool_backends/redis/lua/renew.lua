-- Holds messages for longer.
-- ARGV: ttl in µs, the same with 14 digits, the number of leases, their members, their holders.
-- Answers: a letter each, as settle.lua's.

local q, ttl, count = keys_of(1), tonumber(ARGV[1]), tonumber(ARGV[3])
local members = {unpack(ARGV, 4, 3 + count)}
local deadlines, records = read_many('ZMSCORE', q.leased, members), read_many('HMGET', q.record, members)
local letters, held, changes = {}, {}, {}
for i, member in ipairs(members) do
    local text, holder = records[i], ARGV[3 + count + i]
    letters[i] = check_holder(deadlines[i], text, holder)
    if letters[i] == 'o' then
        held[#held + 1] = member
        if sub(text, 18, 31) ~= ARGV[2] then
            push_pair(changes, member, holder .. ' ' .. ARGV[2] .. sub(text, 32))
        end
    end
end
-- Removes nothing, but lets this script add while the memory is full: see common.lua.
call('ZREM', q.leased, '')
write_many('ZADD', q.leased, scored(now + ttl, held))
write_many('HSET', q.record, changes)
return table.concat(letters)
