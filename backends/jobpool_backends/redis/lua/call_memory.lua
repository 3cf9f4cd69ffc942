-- The memory of calls, one key each. Each holds its own end: the server's expiry is to the millisecond.

-- Return the remembered answer, or nil.
local function recall(key)
    local text = call('GET', key)
    return text and (tonumber(sub(text, 1, 16)) or 0) > now and sub(text, 17) or nil
end

local function remember(key, lasts, text)
    call('SET', key, format('%016.0f', now + lasts) .. text, 'PX', digits(lasts / 1000 + 1))
end

local MEMORY = 600 * 1000000 -- µs for which the id that a producer gave is known after its message has ended
