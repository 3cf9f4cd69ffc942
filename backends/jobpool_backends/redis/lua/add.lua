-- Messages on their way in, to one queue or several. Needs LEAD.last, the key of the last sequence that was given.
--
-- Most messages are new, and have nothing but the end of a record. For one that has more, that word is '+' and JSON.
-- Its fields: `tail` (the end of the record), `counters`, and if any `unique` (its key), `batch`, `error`, `cause`.

local stamp = digits(now)

-- Of messages that come from another queue, by id: error and cause, fields in `batched`, and the member that is left.
local carried, carried_batched, leaving = {}, {}, {}

-- Note one message for its queue; its `words` begin at `at`.
local function note_new(news, names, id, seq, words, at, more)
    local number, due = tonumber(words[at]), words[at + 2]
    local new = news[number]
    if not new then
        new = {ids = {}, records = {}, bodies = {}, ready = {}, delayed = {}, later = {}, more = {}, batched = {}}
        news[number] = new
    end
    local member = words[at + 1] .. format('%016.0f', seq)
    local later = due ~= '' and tonumber(due) > now
    local available = later and due or '-'
    line_up(new, member, later and due)
    push_pair(new.ids, id, member .. ' ' .. names[number])
    if more then
        push_pair(new.records, member, more.counters .. ' ' .. available .. ' ' .. stamp .. ' ' .. more.tail)
        new.more[#new.more + 1] = {member, id, more}
        local batched = more.batch and id .. ' ' .. more.batch or carried_batched[id]
        if batched then
            push_pair(new.batched, member, batched)
        end
    else
        push_pair(new.records, member, '0 0 0 ' .. available .. ' ' .. stamp .. ' ' .. words[at + 3])
    end
    push_pair(new.bodies, member, words[at + 4])
end

-- Crashes that it brings along count from now on.
local function write_more(q, member, id, more)
    local before = carried[id] or {}
    local notes = {error = more.error or before.error, cause = more.cause or before.cause}
    if sub(more.counters, -2) ~= ' 0' then
        notes.crashed = stamp
    end
    if next(notes) then
        call('HSET', named_key(q, 'notes'), member, cjson.encode(notes))
    end
    if more.unique then
        take_key(q, more.unique, id, member)
    end
end

-- Write all but bodies, records and ids, which come last. Where the server refuses a command in between, the ids are
-- unknown still, and a fetch drops a member without a record. So the call is repeated, and nothing is there twice.
local function write_new(q, name, new)
    write_line(q, new)
    call('SADD', q.queues, name)
    for _, each in ipairs(new.more) do
        write_more(q, unpack(each))
    end
    write_many('HSET', named_key(q, 'batched'), new.batched)
    wake_for(q, new)
end

-- An entry of an outbox, with the notes of the message where it comes from.
local function with_notes(entry, notes)
    if not notes or byte(entry) ~= 123 then -- {: one that was moved has that form
        return entry
    end
    local cut = string.find(entry, '\n', 1, true)
    local fields = cjson.decode(sub(entry, 1, cut - 1))
    fields.last_error, fields.cause = fields.last_error or notes.error, fields.cause or notes.cause
    return cjson.encode(fields) .. sub(entry, cut)
end

-- Take the unique key, if any, of a message to be added. Return nil, or the id of the message that has the key already.
-- `taken`: the keys of messages that this call adds.
local function obstacle(q, number, key, id, taken)
    call('EXISTS', named_key(q, 'keyed'), named_key(q, 'notes')) -- see named_keys.lua
    if not key then
        return nil
    end
    local place = number .. ' ' .. key
    local other = taken[place] or known_under(q, key)
    taken[place] = other or id
    return other
end

-- Note that a message that is to be added joins its batch; false when it may not.
local function join(q, more, id, seq, joined, brought)
    local batch = more.batch
    if may_join(q, batch, brought) then
        joined[batch] = joined[batch] or {}
        push_pair(joined[batch], digits(seq), id)
    elseif brought then
        more.batch = nil
    else
        return false
    end
    return true
end

-- Add the messages with unknown ids. `queues`: keys, and `names`: names of queues, by the number that messages give.
-- `words` from `at` on: `count` ids, then five words of each message. These are the number of its queue, priority, time
-- when it is due ('' = now), the end of its record, and its body. Number 0 is a queue that is out of reach. The body is
-- then the whole message, and goes to the outbox of the first queue. `refused` messages are left out. `brought`: by a
-- settlement or a batch, so that a message that is too late for its batch is added without one. One that moves here by
-- an outbox has the sequence of its old queue in place of a time. It is remembered by that and its id from now on. It may
-- be brought twice, and another message of its id may have ended here.
-- Returns ids whose unique key another message has, each with that message's id; nil when there are none. Or it returns
-- a batch that is not open: then nothing was added.
local function add(queues, names, words, at, count, refused, brought)
    local ids, given, remembered, moves, news, mores, taken, existing, joined = {}, {}, {}, {}, {}, {}, {}, {}, {}
    local results, stale = {}, {}
    for i = 1, count do
        ids[i] = words[at + i - 1]
        local due_at = at + count + 5 * i - 3
        local tail = words[due_at + 1]
        local who = byte(tail)
        if who == 43 then -- +
            mores[i] = cjson.decode(sub(tail, 2))
            who = byte(mores[i].tail)
        end
        if who == 103 or who == 119 then -- g, w
            local due = mores[i] and sub(mores[i].counters, 1, 2) ~= '0 ' and words[due_at] or ''
            if due ~= '' then -- it moves here by an outbox
                moves[i], words[due_at] = ids[i] .. ' ' .. due, ''
            end
            push(given, ids[i])
            results[ids[i]] = shared(queues[1], 'result:' .. ids[i]) -- of an earlier job, if one is kept
            push(remembered, moves[i] or ids[i])
        end
    end
    local moved, known = {}, known_among(queues[1], ids, given, remembered, leaving)
    local seq = last_sequence()
    for i, id in ipairs(ids) do
        local from = at + count + 5 * (i - 1)
        local left_out = refused and refused[i]
        if words[from] == '0' then
            if not left_out then
                call('RPUSH', queues[1].outbox, with_notes(words[from + 4], carried[id]))
            end
        elseif not (left_out or known[id]) then
            local more = mores[i]
            local other = more and obstacle(queues[tonumber(words[from])], words[from], more.unique, id, taken)
            known[id] = true -- the same id again is the same message
            if other then
                push_pair(existing, id, other)
            else
                if more and more.batch and not join(queues[1], more, id, seq + 1, joined, brought) then
                    return more.batch
                end
                seq = seq + 1
                push(stale, results[id])
                note_new(news, names, id, seq, words, from, more)
                push(moved, moves[i])
            end
        end
    end
    call('SET', LEAD.last, digits(seq)) -- needs room: a full server would let all pass behind a DEL
    write_many('DEL', stale[1], stale)
    for number, new in pairs(news) do
        write_new(queues[number], names[number], new)
    end
    for batch, pairs_of in pairs(joined) do
        call('HINCRBY', shared(queues[1], 'batch:' .. batch), 'total', #pairs_of / 2)
        write_many('ZADD', shared(queues[1], 'members:' .. batch), pairs_of)
    end
    for number, new in pairs(news) do
        local q = queues[number]
        write_many('HSET', q.body, new.bodies)
        write_many('HSET', q.record, new.records)
    end
    for number, new in pairs(news) do
        write_many('HSET', queues[number].ids, new.ids)
    end
    write_many('ZADD', queues[1].ended, scored(now + MEMORY, moved))
    return existing[1] and existing
end
