-- Starts that are counted over sliding windows: a sorted set of their tokens, by time in µs. Its member '' says how
-- long the longest of these windows is, as a negative score. Starts older than that one are removed.

local REPEATED = 60 * 1000000 -- µs for which a start is known after its window: a call may be repeated

-- µs until there is room for one start more; 0 when there is, or when this very start was counted before.
local function wait_for(key, most, window, token)
    local longest = math.max(window, -(call('ZSCORE', key, '') or 0))
    call('ZREMRANGEBYSCORE', key, 0, now - longest - REPEATED)
    -- A clock that was set back leaves starts ahead: do not wait for those further off than the window.
    local from, to = '(' .. digits(now - window), '(' .. digits(now + window)
    local count = call('ZCOUNT', key, from, to)
    if count < most or call('ZSCORE', key, token) then
        return 0
    end
    return call('ZRANGE', key, from, to, 'BYSCORE', 'LIMIT', count - most, 1, 'WITHSCORES')[2] + window - now
end

local function count_start(key, window, token)
    local lasts = math.ceil((window + REPEATED) / 1000) + 1
    call('ZADD', key, 'LT', -window, '')
    call('ZADD', key, 'NX', now, token)
    if call('PTTL', key) < lasts then
        call('PEXPIRE', key, digits(lasts))
    end
end
