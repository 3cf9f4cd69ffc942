-- Places that leases hold, by name: a hash each, which tells the holder of each message's member. A place is held while
-- that lease lives, so the leases themselves are looked at. Places of ended leases are removed when they are met.

-- The names of the hashes of all places in some guards.
local function places_of(guards)
    local names = {}
    if guards[1] ~= '' then
        names[1] = 'runs:' .. guards[1]
    end
    for _, hold in ipairs(guards[3]) do
        names[#names + 1] = 'hold:' .. hold[1]
    end
    return names
end

-- By place in the lists, the deadlines of live leases; false for ended ones.
local function live_deadlines(q, members, holders)
    local deadlines, records = read_many('ZMSCORE', q.leased, members), read_many('HMGET', q.record, members)
    for i = 1, #members do
        deadlines[i] = check_holder(deadlines[i], records[i], holders[i]) == 'o' and deadlines[i]
    end
    return deadlines, records
end

-- Return the content of a hash of places: members, their holders.
local function holders_in(key)
    local pairs_of, members, holders = call('HGETALL', key), {}, {}
    for i = 1, #pairs_of, 2 do
        members[#members + 1], holders[#holders + 1] = pairs_of[i], pairs_of[i + 1]
    end
    return members, holders
end
