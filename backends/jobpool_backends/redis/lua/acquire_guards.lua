-- Grants the guards that leases of one queue or several need before their handlers run. Each lease gets all or nothing.
--
-- ARGV, for each queue: the number of leases, then of each lease its member, and its owner token followed by guards.
-- Guards are JSON: the idempotency key or '', the µs for which it stays done, the holds and the rates. A hold is
-- [name, most], a rate [name, most, window in µs].
--
-- Answers, a word each: g granted, l lost, d the key is done, k the key is held, `h HOLD`, `r µs RATE`.

local swept = {}

-- Remove former holders of these places; return how many.
local function sweep(q, key)
    local members, holders = holders_in(key)
    local dead = {}
    for i, deadline in ipairs((live_deadlines(q, members, holders))) do
        dead[#dead + 1] = not deadline and members[i] or nil
    end
    write_many('HDEL', key, dead)
    return #dead
end

-- Return whether there is a place for this message. If not, first remove those of ended leases, once in a script.
local function has_place(q, name, most, member)
    local key = named_key(q, name)
    local taken = call('HLEN', key)
    if taken < most then
        return true
    end
    if not swept[key] then
        swept[key] = true
        taken = taken - sweep(q, key)
    end
    return taken - call('HEXISTS', key, member) < most
end

-- The answer that refuses, nil for none.
local function refusal(q, member, token, guards)
    local key = guards[1]
    if key ~= '' then
        if recall(named_key(q, 'done:' .. key)) then
            return 'd'
        end
        if not has_place(q, 'runs:' .. key, 1, member) then
            return 'k'
        end
    end
    for _, hold in ipairs(guards[3]) do
        if not has_place(q, 'hold:' .. hold[1], hold[2], member) then
            return 'h ' .. hold[1]
        end
    end
    for _, rate in ipairs(guards[4]) do
        local left = wait_for(named_key(q, 'rate:' .. rate[1]), rate[2], rate[3], token)
        if left > 0 then
            return 'r ' .. digits(left) .. ' ' .. rate[1]
        end
    end
end

-- Note the grants of the lease, so that they are found if it ends without a settlement.
local function grant(q, member, who, guards, deadline)
    local holder, places = sub(who, 1, 16), places_of(guards)
    for _, name in ipairs(places) do
        call('HSET', named_key(q, name), member, holder)
    end
    for _, rate in ipairs(guards[4]) do
        count_start(named_key(q, 'rate:' .. rate[1]), rate[3], sub(who, 1, 32))
    end
    if #places > 0 then
        call('ZADD', named_key(q, 'guarded'), deadline, member .. holder .. sub(who, 33))
    end
end

local function answer(q, member, who, deadline, text)
    if check_holder(deadline, text, sub(who, 1, 16)) ~= 'o' then
        return 'l'
    end
    local guards = cjson.decode(sub(who, 33))
    local refused = refusal(q, member, sub(who, 1, 32), guards)
    if not refused then
        grant(q, member, who, guards, deadline)
    end
    return refused or 'g'
end

local function free(q, entry)
    local member, holder = sub(entry, 1, 19), sub(entry, 20, 35)
    for _, name in ipairs(places_of(cjson.decode(sub(entry, 36)))) do
        local key = named_key(q, name)
        if call('HGET', key, member) == holder then
            call('HDEL', key, member)
        end
    end
end

-- Look at some leases that should have ended. Renewed ones are looked at again later, the others lose their places.
local function tidy(q, most)
    local key = named_key(q, 'guarded')
    local entries, members, holders, later = call('ZRANGE', key, '-inf', now, 'BYSCORE', 'LIMIT', 0, most), {}, {}, {}
    for i, entry in ipairs(entries) do
        members[i], holders[i] = sub(entry, 1, 19), sub(entry, 20, 35)
    end
    write_many('ZREM', key, entries)
    for i, deadline in ipairs((live_deadlines(q, members, holders))) do
        if deadline then
            later[#later + 1], later[#later + 2] = deadline, entries[i]
        else
            free(q, entries[i])
        end
    end
    write_many('ZADD', key, later)
end

local answers, at = {}, 1
for number = 1, COUNT do
    local q, count, members = keys_of(number), tonumber(ARGV[at]), {}
    for i = 1, count do
        members[i] = ARGV[at + 2 * i - 1]
    end
    -- Removes nothing, but lets this script add while the memory is full: see common.lua.
    call('ZREM', named_key(q, 'guarded'), '')
    local deadlines, records = read_many('ZMSCORE', q.leased, members), read_many('HMGET', q.record, members)
    for i, member in ipairs(members) do
        answers[#answers + 1] = answer(q, member, ARGV[at + 2 * i], deadlines[i], records[i])
    end
    tidy(q, 2 * count + 10)
    at = at + 2 * count + 1
end
return answers
