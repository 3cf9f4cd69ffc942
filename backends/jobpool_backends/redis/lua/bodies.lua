-- Bodies for an answer. One that is too large is not read, and its length stands for it; false stands for none.

local LARGEST = 1048576
local BYTES = 4 * 1048576 -- of bodies, after which no more are taken: an answer must not hold the server up

-- Return the bodies of the first members, until they have `most` bytes together, and those bytes. The other members
-- leave the list.
local function take_bodies(q, members, most)
    local key, bytes, large, taken = q.body, 0, {}, #members
    for i = 1, #members do
        local size = call('HSTRLEN', key, members[i])
        if size > LARGEST then
            large[i] = size
        else
            bytes = bytes + size
        end
        if bytes >= most then
            taken = i
            break
        end
    end
    for i = #members, taken + 1, -1 do
        members[i] = nil
    end
    if not next(large) then
        return read_many('HMGET', key, members), bytes
    end
    local bodies = {}
    for i, member in ipairs(members) do
        bodies[i] = large[i] or call('HGET', key, member)
    end
    return bodies, bytes
end

local function bodies_of(q, members)
    return (take_bodies(q, members, math.huge))
end
