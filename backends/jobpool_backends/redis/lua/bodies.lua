-- Bodies for an answer. One that is too large is not read, and its length stands for it; false stands for none.

local LARGEST = 1048576

-- Return how many of the first members have bodies of `most` bytes together. Also return the lengths of those that are
-- too large, by place, and the bytes of the others.
local function measure(q, members, most)
    local key, bytes, large = q.body, 0, {}
    for i = 1, #members do
        local size = call('HSTRLEN', key, members[i])
        if size > LARGEST then
            large[i] = size
        else
            bytes = bytes + size
            if bytes >= most then
                return i, large, bytes
            end
        end
    end
    return #members, large, bytes
end

-- The bodies of these members, of which some may be too large.
local function read_bodies(q, members, large)
    if not next(large) then
        return read_many('HMGET', q.body, members)
    end
    local bodies = {}
    for i, member in ipairs(members) do
        bodies[i] = large[i] or call('HGET', q.body, member)
    end
    return bodies
end

local function bodies_of(q, members)
    local _, large = measure(q, members, math.huge)
    return read_bodies(q, members, large)
end
