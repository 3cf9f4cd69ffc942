-- The priority of a member, in digits; nil for one that was put there by hand.
local function priority_of(member)
    return match(member or '', '^[012]%d%d')
end

-- The first member of each priority in a set, by that priority.
local function firsts_in(key)
    local firsts, first = {}, call('ZRANGE', key, '[0', '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    while priority_of(first) do
        push(firsts, first)
        first = call('ZRANGE', key, format('[%03d', priority_of(first) + 1), '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    end
    return firsts
end
