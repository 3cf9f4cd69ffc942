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
