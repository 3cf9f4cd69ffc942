-- Dead letters of queue q, and the caps on them.

local EVICT = 500 -- at most in one script, by age and by number each; the next one goes on

local function evict(q, victims)
    if #victims == 0 then
        return
    end
    write_many('ZREM', q.dead, victims)
    write_many('ZREM', q.buried, victims)
    erase_recorded(q, victims, read_many('HMGET', q.record, victims))
    call('INCRBY', q.evicted, #victims)
end

-- Remove the oldest dead letters beyond `most`, and those older than `age` µs; 0 = no cap.
local function cap_dead(q, most, age)
    if age > 0 then
        evict(q, call('ZRANGE', q.dead, '-inf', now - age, 'BYSCORE', 'LIMIT', 0, EVICT))
    end
    local over = most > 0 and call('ZCARD', q.dead) - most or 0
    if over > 0 then
        evict(q, call('ZRANGE', q.dead, 0, math.min(over, EVICT) - 1))
    end
end

local function bury(q, members)
    write_many('ZADD', q.dead, scored(now, members))
    write_many('ZADD', q.buried, scored(0, members))
end
