-- Leases the first messages in order.
-- ARGV: limit, ttl in µs, the text before a leased record, and the µs for which to remember the call.
-- Answers: members, records, bodies, and what is left: 0 = there may be more, -1 = nothing, else the µs until a message
-- falls due. Then, if the call is a repeated one, the µs that each lease has left.

local PROMOTE = 4000 -- due messages that are put in order with the others, in some 10 ms; the next fetch goes on

local q, limit, ttl, tag = keys_of(1), tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]

-- Return the leases still held of a fetch: `known` is its holder, a space, its members.
local function fetch_again(known)
    local holder, members = sub(known, 1, 16), {}
    for at = 18, #known, 19 do
        members[#members + 1] = sub(known, at, at + 18)
    end
    local deadlines, records = read_many('ZMSCORE', q.leased, members), read_many('HMGET', q.record, members)
    local held, kept, left = {}, {}, {}
    for i, member in ipairs(members) do
        if check_holder(deadlines[i], records[i], holder) == 'o' then
            held[#held + 1], kept[#kept + 1], left[#left + 1] = member, records[i], deadlines[i] - now
        end
    end
    return {held, kept, bodies_of(q, held), 0, left}
end

-- The records of leased messages: the holder before them, and one delivery more. A member without a message (edited by
-- hand) has none, and is not leased.
local function take_records(members, bodies)
    local records, first = read_many('HMGET', q.record, members), tag .. '1'
    for i, text in ipairs(records) do
        if not (text and bodies[i]) then
            records[i] = false
        elseif sub(text, 1, 2) == '0 ' then -- most of them, and much quicker
            records[i] = first .. sub(text, 2)
        else
            local deliveries, attempts, crashes, mark, available, rest = parts_of(text, 1, members[i])
            deliveries = digits(math.min(deliveries, 2 ^ 32) + 1)
            records[i] = format(
                '%s%s %s %s %s%s %s', tag, deliveries, attempts, crashes, mark, available, rest)
        end
    end
    return records
end

local function lease(members, records)
    local leased, changes, size = {}, {}, 0
    for i, member in ipairs(members) do
        if records[i] then
            size = size + 1
            leased[size] = member
            changes[2 * size - 1], changes[2 * size] = member, records[i]
        end
    end
    if size > 0 then
        remember(LEAD.memory, tonumber(ARGV[4]), sub(tag, 1, 17) .. table.concat(members))
    end
    write_many('HSET', q.record, changes)
    write_many('ZADD', q.leased, scored(now + ttl, leased))
    call('ZREMRANGEBYRANK', q.ready, 0, #members - 1)
end

-- Let the bell say whether something is ready now, and return what is left.
local function ring()
    if call('EXISTS', q.ready) == 1 then
        wake_one(q)
        return 0
    end
    call('DEL', q.bell)
    local soonest = call('ZRANGE', q.delayed, 0, 0, 'WITHSCORES')[2]
    return soonest and math.max(0, tonumber(soonest) - now) or -1
end

local known = recall(LEAD.memory)
if known then
    return fetch_again(known)
end
promote(q, PROMOTE)
local members = call('ZRANGE', q.ready, 0, limit - 1)
if #members == 0 then
    return {members, members, members, ring()}
end
call('ZREMRANGEBYRANK', q.ready, 1, 0) -- of none, for what `check_writable` says
call('ZADD', q.leased, 'XX', 0, '')
local bodies = take_bodies(q, members, BYTES)
local records = take_records(members, bodies)
lease(members, records)
return {members, records, bodies, ring()}
