-- Edits jobs that wait or are delayed, each if its queue and priority are those that were seen.
--
-- ARGV: for how long to remember the call in µs, and the queues' names. Seven words of each edit follow.
-- First come the numbers of its queue and of its new queue, then member, id and new priority.
-- The last two are the time when it is due, in µs, and the body. An empty word leaves either as it is.
--
-- Answers: a letter each. e: edited, c: changed meanwhile, d: the new queue knows its unique key.

local WORDS = 7

-- Move the fields that are kept by member.
local function rename(from, to, member, renamed)
    for _, name in ipairs({'body', 'notes'}) do
        local value = call('HGET', from[name], member)
        call('HDEL', from[name], member)
        if value then
            call('HSET', to[name], renamed, value)
        end
    end
    call('HDEL', from.record, member)
end

local function edit(from, to, name, member, id, priority, due, body)
    local text, score = call('HGET', from.record, member), call('ZSCORE', from.delayed, member)
    if not (text and (score or call('ZSCORE', from.ready, member))) then
        return 'c'
    end
    local counters, mark, available, enqueued, who, ident, rest = match(
        text, '^(%d+ %d+ %d+) (%+?)(%S+) (%d+) (%a)(%S+)(.*)$'
    )
    if ident ~= id then
        return 'c'
    end
    local key = (who == 'u' or who == 'w') and call('HGET', named_key(from, 'keyed'), member)
    local batched = call('HGET', named_key(from, 'batched'), member)
    if key and from ~= to and known_under(to, key) then
        return 'd'
    end
    check_writable(from.ready)
    call('HSET', from.record, member, text) -- tried in the same way
    call('SADD', to.queues, name)
    if due ~= '' then
        score = tonumber(due) > now and due
        available = score or digits(now)
    end
    local renamed = priority .. sub(member, 4)
    if from ~= to or renamed ~= member then
        if key and from == to then
            call('HDEL', named_key(from, 'keyed'), member)
            call('HSET', named_key(from, 'keyed'), renamed, key)
        elseif key then
            give_keys(from, {{member, id, 0}})
            take_key(to, key, id, renamed)
        end
        rename(from, to, member, renamed)
        if batched then
            call('HDEL', named_key(from, 'batched'), member)
            call('HSET', named_key(to, 'batched'), renamed, batched)
        end
        call('HSET', to.ids, id, renamed .. ' ' .. name)
    end
    call('HSET', to.record, renamed, format('%s %s%s %s %s%s%s', counters, mark, available, enqueued, who, id, rest))
    if body ~= '' then
        call('HSET', to.body, renamed, body)
    end
    for _, set in ipairs({'ready', 'delayed', 'later'}) do
        call('ZREM', from[set], member)
    end
    local lists = {ready = {}, delayed = {}, later = {}}
    line_up(lists, renamed, score)
    write_line(to, lists)
    wake_for(to, lists)
    return 'e'
end

local known = recall(LEAD.memory)
if known then
    return known
end
local queues, letters = {}, {}
for number = 1, COUNT do
    queues[number] = keys_of(number)
    sweep_claims(queues[number], SWEEP)
end
for at = 2 + COUNT, #ARGV, WORDS do
    local number = tonumber(ARGV[at + 1])
    letters[#letters + 1] = edit(
        queues[tonumber(ARGV[at])], queues[number], ARGV[1 + number], unpack(ARGV, at + 2, at + WORDS - 1)
    )
end
local answers = table.concat(letters)
remember(LEAD.memory, ARGV[1], answers)
return answers
