-- Batches and their members: see the table in keyspace.py. A cluster has none, because no step spans its queues.
--
-- A member stands in `batched` of its queue until it ends, so its end is counted once. Where that key is missing, there
-- is nothing to do.

-- By batch, the ends of members in this call, which end_batches.lua counts: how many of each kind, and which failed.
local touched = {}

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

-- The ends of members of a batch in this call.
local function touch(batch)
    touched[batch] = touched[batch] or {succeeded = 0, failed = 0, cancelled = 0, failed_ids = {}}
    return touched[batch]
end

-- Note that a member of this batch, a message or a batch, ends as `succeeded`, `failed` or `cancelled`.
local function note_end(batch, ident, ending)
    local ends = touch(batch)
    ends[ending] = ends[ending] + 1
    if ending == 'failed' then
        push(ends.failed_ids, ident)
    end
end

-- Take the fields of these members of queue q out of `batched`; nil where it is missing.
local function take_batched(q, members)
    if #members == 0 or #q.record - #q.ids == 3 then -- on a cluster both names begin alike
        return nil
    end
    local key = named_key(q, 'batched')
    if call('EXISTS', key) == 0 then
        return nil
    end
    local texts = read_many('HMGET', key, members)
    write_many('HDEL', key, members)
    return texts
end

-- Note the end of each of these messages that is a member of a batch, and take it out.
local function end_members(q, members, ending)
    local texts, gone = take_batched(q, members), {}
    if not texts then
        return
    end
    for _, text in ipairs(texts) do
        if text then
            local id, batch = match(text, '^(%S+) (.*)$')
            note_end(batch, id, ending)
            gone[batch] = gone[batch] or {}
            push(gone[batch], id)
        end
    end
    for batch, ids in pairs(gone) do
        write_many('ZREM', shared(q, 'members:' .. batch), ids)
    end
end
