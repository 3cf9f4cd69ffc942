-- Messages on their way in, to one queue or several. Needs LEAD.last, the key of the last sequence that was given.

local stamp = digits(now)

-- Which of `ids` are not to be added: live, dead, or ended not long ago.
local function known_among(q, ids, given)
    local known = {}
    for i, place in ipairs(ask('HMGET', q.ids, ids)) do
        known[ids[i]] = place and true
    end
    for i, memory in ipairs(ask('ZMSCORE', q.ended, given)) do
        known[given[i]] = known[given[i]] or (memory and tonumber(memory) > now)
    end
    return known
end

local function put(list, name, value)
    local size = #list
    list[size + 1], list[size + 2] = name, value
end

-- Note one message for its queue; the words of ARGV begin at `at`.
local function note_new(news, names, id, seq, at)
    local number, due, available = tonumber(ARGV[at]), ARGV[at + 2], '-'
    local new = news[number]
    if not new then
        new = {ids = {}, records = {}, bodies = {}, ready = {}, delayed = {}, later = {}}
        news[number] = new
    end
    local member = ARGV[at + 1] .. format('%016.0f', seq)
    if due ~= '' and tonumber(due) > now then
        available = due
        put(new.delayed, due, member)
        put(new.later, 0, member)
    else
        put(new.ready, 0, member)
    end
    put(new.ids, id, member .. ' ' .. names[number])
    put(new.records, member, '0 0 0 ' .. available .. ' ' .. stamp .. ' ' .. ARGV[at + 3])
    put(new.bodies, member, ARGV[at + 4])
end

local function write_new(q, name, new)
    many('HSET', q.ids, new.ids)
    many('HSET', q.record, new.records)
    many('HSET', q.body, new.bodies)
    many('ZADD', q.delayed, new.delayed)
    many('ZADD', q.later, new.later)
    call('SADD', q.queues, name)
    if #new.ready > 0 then
        many('ZADD', q.ready, new.ready)
        ring(q)
    end
end

-- Add those whose id is not known. `queues` are the keys, by the number that messages name their queue with, `names` the
-- queues' names. ARGV from `at` on: `count` ids; then for each message the number of its queue, priority, when it is due
-- ('' = now), the end of its record, its body. Number 0 is a queue that is out of reach: the body, which then is the
-- whole message, goes to the outbox of the first queue. Messages that `refused` says are left out.
local function add(queues, names, at, count, refused)
    local ids, given, news = {}, {}, {}
    for i = 1, count do
        ids[i] = ARGV[at + i - 1]
        if byte(ARGV[at + count + 5 * i - 2]) == 103 then -- g
            given[#given + 1] = ids[i]
        end
    end
    local known = known_among(queues[1], ids, given)
    local seq = math.max(tonumber(call('GET', LEAD.last) or 0), now - 1)
    for i, id in ipairs(ids) do
        local from = at + count + 5 * (i - 1)
        local left_out = refused and refused[i]
        if ARGV[from] == '0' then
            if not left_out then
                call('RPUSH', queues[1].outbox, ARGV[from + 4])
            end
        elseif not (left_out or known[id]) then
            known[id] = true -- the same id again is the same message
            seq = seq + 1
            note_new(news, names, id, seq, from)
        end
    end
    for number, new in pairs(news) do
        write_new(queues[number], names[number], new)
    end
    call('SET', LEAD.last, digits(seq))
end
