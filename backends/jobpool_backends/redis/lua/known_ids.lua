-- The ids that must not be added: live, dead, or ended not long ago. Returns them as keys of a table. `given`: those ids
-- that are remembered, with `names` in `ended`. `leaving`: by id, the member that makes room for one that moves.
local function known_among(q, ids, given, names, leaving)
    local known = {}
    for i, place in ipairs(read_many('HMGET', q.ids, ids)) do
        known[ids[i]] = place and sub(place, 1, 19) ~= leaving[ids[i]]
    end
    for i, memory in ipairs(read_many('ZMSCORE', q.ended, names)) do
        known[given[i]] = known[given[i]] or (memory and tonumber(memory) > now)
    end
    return known
end

-- The last sequence that was given; the next one is not before this moment.
local function last_sequence()
    return math.max(tonumber(call('GET', LEAD.last) or 0) or 0, now - 1)
end
