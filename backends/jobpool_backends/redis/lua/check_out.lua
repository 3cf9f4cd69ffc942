-- A claim that is made or renewed: its checkout, and the lives of the posted messages that it holds.

local LONGEST = 1209600 * 1000000 -- µs from now that a life can last

-- The end of a life that lasts until `least`, at least; nothing brings it nearer.
local function prolonged(life, least)
    if life == '-' then
        return life
    end
    return digits(math.max(tonumber(life), math.min(least, now + LONGEST)))
end

-- Write the checkout of a claim; return its head.
local function check_out(q, id, ttl, grace, members)
    local head = format('%016.0f %014.0f %014.0f %016.0f', now + ttl, ttl, grace, now)
    call('HSET', q.checkouts, id, head .. ' ' .. table.concat(members))
    call('ZADD', q.claims, now + ttl, id)
    return head
end
