-- The ends of batches: the sums of members' ends, and the callbacks that the last one brings.
--
-- A member stands in `batched` of its queue until it ends, so its end is counted once. Where that key is missing, there
-- is nothing to do.

-- By batch, the ends of members in this call, how many of each kind, and which failed.
local touched = {}

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

-- Count the ends of this call, once its new members have joined; q is any queue. A batch that ends may end another.
-- Mostly there are none, so its functions are made in here: each call of a script makes those outside.
local function end_batches(q)
    if not next(touched) then
        return
    end

    local BATCH_MEMORY = 604800000 -- ms for which a batch is known after its end
    local MAX_FAILED = 100 -- ids that are kept of a batch
    local over = {} -- batches that end in this call

    -- The keys of a queue by its name. They are not among KEYS, which a single server allows.
    local function queue_named(name)
        local keys = {ids = q.ids, ended = shared(q, 'ended'), queues = shared(q, 'queues')}
        local head = shared(q, '{' .. name .. '}:')
        return setmetatable(keys, {
            __index = function(_, key)
                return head .. key
            end,
        })
    end

    -- Add callbacks of a batch, each a line of facts and then its body, which is told the `result`.
    local function call_back(entries, result)
        local queues, names, numbers, words = {}, {}, {}, {}
        for i, entry in ipairs(entries) do
            local cut = string.find(entry, '\n', 1, true)
            local name, id, priority, due, tail = unpack(cjson.decode(sub(entry, 1, cut - 1)))
            if not numbers[name] then
                names[#names + 1] = name
                numbers[name], queues[#names] = #names, queue_named(name)
            end
            words[i] = id
            for at, word in ipairs({numbers[name], priority, due, tail, sub(entry, cut + 1, -2) .. result}) do
                words[#entries + 5 * (i - 1) + at] = word
            end
        end
        LEAD.last = LEAD.last or shared(q, 'last')
        add(queues, names, words, 1, #entries, nil, true)
    end

    -- The first ids that failed, of those known and of others, as lines.
    local function failed_lines(known, others)
        local lines, count = {known ~= '' and known or nil}, 0
        for _ in string.gmatch(known, '[^\n]+') do
            count = count + 1
        end
        for i = 1, math.min(#others, MAX_FAILED - count) do
            lines[#lines + 1] = others[i]
        end
        return table.concat(lines, '\n')
    end

    -- The field of a callback's body that tells of the end, in place of the body's last brace.
    local function result_of(batch, total, counts, failed)
        local ids = {}
        for id in string.gmatch(failed, '[^\n]+') do
            push(ids, id)
        end
        return format(
            ',"ended":{"id":%s,"total":%d,"succeeded":%d,"failed":%d,"cancelled":%d,"failed_ids":%s}}',
            cjson.encode(batch), total, counts.succeeded, counts.failed, counts.cancelled,
            #ids > 0 and cjson.encode(ids) or '[]'
        )
    end

    -- The last member of a closed batch has ended. Callbacks come first: where the server refuses a command, the batch
    -- has not ended, and a repeated close adds those that are missing.
    local function end_batch(batch, total, counts, failed)
        local key, entries = shared(q, 'batch:' .. batch), {}
        local on_success, on_done, parent, stopped =
            unpack(call('HMGET', key, 'on_success', 'on_done', 'parent', 'stopped'))
        local is_failed = stopped or counts.succeeded < total
        states[batch] = {'0', digits(now)} -- no callback joins it
        push(entries, on_success and not is_failed and on_success or nil)
        push(entries, on_done or nil)
        if #entries > 0 then
            call_back(entries, result_of(batch, total, counts, failed))
        end
        call('HSET', key, 'ended', digits(now))
        push(over, batch)
        if parent then
            note_end(parent, batch, stopped and 'cancelled' or is_failed and 'failed' or 'succeeded')
        end
    end

    local function count_ends(batch, ends)
        local key, counts = shared(q, 'batch:' .. batch), {}
        local open, ended, total, failed, left
        open, ended, total, failed, counts.succeeded, counts.failed, counts.cancelled =
            unpack(call('HMGET', key, 'open', 'ended', 'total', 'failed_ids', 'succeeded', 'failed', 'cancelled'))
        if not open or ended then
            return -- edited by hand, or it is closed once more
        end
        left = tonumber(total)
        for name, count in pairs(counts) do
            counts[name] = count + ends[name]
            left = left - counts[name]
        end
        if #ends.failed_ids > 0 then
            failed = failed_lines(failed, ends.failed_ids)
        end
        call(
            'HSET', key, 'failed_ids', failed,
            'succeeded', counts.succeeded, 'failed', counts.failed, 'cancelled', counts.cancelled
        )
        if open == '0' and left == 0 then
            end_batch(batch, tonumber(total), counts, failed)
        end
    end

    local batch, ends = next(touched)
    while batch do
        touched[batch] = nil
        count_ends(batch, ends)
        batch, ends = next(touched)
    end
    for _, ended in ipairs(over) do -- after all parents are told: this may be refused, and is not repeated
        call('HDEL', shared(q, 'batch:' .. ended), 'on_success', 'on_done')
        for _, name in ipairs({'batch:', 'nested:', 'members:'}) do
            call('PEXPIRE', shared(q, name .. ended), BATCH_MEMORY)
        end
    end
end
