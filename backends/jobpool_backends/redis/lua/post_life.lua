-- The lives of posted messages that claims hold.

local LONGEST = 1209600 * 1000000 -- µs from now that a life can last

-- The end of a life that lasts until `least`, at least; nothing brings it nearer.
local function prolonged(life, least)
    if life == '-' then
        return life
    end
    return digits(math.max(tonumber(life), math.min(least, now + LONGEST)))
end
