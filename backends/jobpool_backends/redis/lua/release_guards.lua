-- The grants to leases of queue q, at their end.

local function push_to(lists, name, value)
    local list = lists[name] or {}
    lists[name], list[#list + 1] = list, value
end

-- Each is {member, owner token followed by the guards, verb}: see acquire_guards.lua.
local function release_guards(q, guarded)
    local noted, places, starts = {}, {}, {}
    for _, one in ipairs(guarded) do
        local member, who, verb = one[1], one[2], one[3]
        local guards = cjson.decode(sub(who, 33))
        noted[#noted + 1] = member .. sub(who, 1, 16) .. sub(who, 33)
        for _, name in ipairs(places_of(guards)) do
            push_to(places, name, member)
        end
        if match(verb, '[aAuU]') and guards[1] ~= '' then
            remember(named_key(q, 'done:' .. guards[1]), guards[2], '')
        end
        for _, rate in ipairs(verb == 'R' and guards[4] or {}) do
            push_to(starts, 'rate:' .. rate[1], sub(who, 1, 32))
        end
    end
    write_many('ZREM', named_key(q, 'guarded'), noted)
    for name, members in pairs(places) do
        write_many('HDEL', named_key(q, name), members)
    end
    for name, tokens in pairs(starts) do
        write_many('ZREM', named_key(q, name), tokens)
    end
end
