-- Batches and their members: see the table in keyspace.py. A cluster has none, because no step spans its queues.

-- By batch that was asked for: whether it is open, and when it ended.
local states = {}

-- A key of the namespace that q is in.
local function shared(q, name)
    return sub(q.ids, 1, -4) .. name
end

-- Return whether a message may join this batch: until its end if a settlement brings it, else while it is open.
local function may_join(q, batch, brought)
    local found = states[batch] or call('HMGET', shared(q, 'batch:' .. batch), 'open', 'ended')
    states[batch] = found
    if brought then
        return found[1] and not found[2]
    end
    return found[1] == '1'
end
