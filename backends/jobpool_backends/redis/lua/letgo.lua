-- The grants to leases of queue q, at their end.

local ACKS = {a = true, A = true, u = true, U = true}

local function gather(lists, name, value)
    local list = lists[name] or {}
    lists[name], list[#list + 1] = list, value
end

-- Each is {member, owner token followed by the guards, verb}: see begin.lua.
local function let_go(q, guarded)
    local noted, places, starts = {}, {}, {}
    for _, one in ipairs(guarded) do
        local member, who, verb = one[1], one[2], one[3]
        local guards = cjson.decode(sub(who, 33))
        noted[#noted + 1] = member .. sub(who, 1, 16) .. sub(who, 33)
        for _, name in ipairs(places_of(guards)) do
            gather(places, name, member)
        end
        if ACKS[verb] and guards[1] ~= '' then
            remember(beside(q, 'done:' .. guards[1]), guards[2], '')
        end
        for _, rate in ipairs(verb == 'R' and guards[4] or {}) do
            gather(starts, 'rate:' .. rate[1], sub(who, 1, 32))
        end
    end
    many('ZREM', beside(q, 'guarded'), noted)
    for name, members in pairs(places) do
        many('HDEL', beside(q, name), members)
    end
    for name, tokens in pairs(starts) do
        many('ZREM', beside(q, name), tokens)
    end
end
