-- Places in the line of a queue: lists `ready`, `delayed` and `later`, gathered first, and then written together.

-- Note a message that waits; with a time `due`, in µs, one that waits from then on.
local function line_up(lists, member, due)
    if due then
        push_pair(lists.delayed, due, member)
        push(lists.later, member)
    else
        push(lists.ready, member)
    end
end

local function write_line(q, lists)
    write_many('ZADD', q.ready, scored(0, lists.ready))
    write_many('ZADD', q.delayed, lists.delayed)
    write_many('ZADD', q.later, scored(0, lists.later))
end

local LOOK_INTERVAL = 500000 -- µs, as `LOOK_INTERVAL_S`: a waiter finds by itself what falls due after its next look

-- Wake one waiter for these lists of jobs, if it would be late for them.
local function wake_for(q, lists)
    if #lists.ready > 0 then
        return wake_one(q)
    elseif #lists.later > 0 then
        local first, due = unpack(call('ZRANGE', q.delayed, 0, 0, 'WITHSCORES'))
        for _, member in ipairs(tonumber(due) < now + LOOK_INTERVAL and lists.later or {}) do
            if member == first then
                return wake_one(q, '')
            end
        end
    end
end
