-- Settles messages of one queue or several, and adds the messages that these settlements bring: follow-ups and moves.
--
-- ARGV: the µs for which to remember the call, the caps dead_max, and dead_max_age in µs. Then for each queue: the
-- number of settlements, their verbs as one word, their members, holders and ids, and in order the verbs' arguments.
-- With several queues, the place of each of these settlements in the call follows. With follow-ups, see follow_up.
-- After the holder of a guarded lease come the rest of its owner token and its guards, see acquire_guards.lua.
--
-- * a, A   ack (A: its producer gave the id)
-- * u, U   the same of a message with a unique key: the µs for which that stays known
-- * n      nack         delay in µs, errors
-- * r, R   release      delay in µs              (R: gives the starts of the guards back)
-- * s      the same, of a message that was begun
-- * b      abandon      reason, errors           (errors: '-' for none, '=' and the error, or JSON of error and cause)
-- * x      the same, of a failed attempt
-- * f      forfeit      cause
-- * m      move: follow_up says where to
--
-- Where results are kept, the word of the verbs ends in a further letter. The number of
-- results then follows what the verbs need. Of each come its place among these settlements, its life in ms, and itself.
--
-- Answers: a letter each: o ok, n not in flight, e expired, w not the owner; before those of a repeated call, '!'.
--
-- Messages that claims hold are not among the leased ones. They are looked for only where a settlement is refused.

local NEEDS = {a = 0, A = 0, u = 1, U = 1, n = 2, r = 1, R = 1, s = 1, b = 2, x = 2, f = 1, m = 0}

-- Changes of a call to one queue are gathered first, and then written with few commands.
local function nothing_yet()
    return {
        ended = {}, ids = {}, given = {}, forfeited = {}, left = {}, changes = {}, ready = {}, delayed = {}, later = {},
        dead = {}, dead_ids = {}, cancelled = {}, edits = {}, unique = {}, moved = {}, moved_ids = {}, guarded = {},
        results = {}, result_ids = {},
    }
end

-- The message leaves its lease with this record.
local function leave(work, member, text)
    push(work.left, member)
    push_pair(work.changes, member, text)
end

-- Back to its place, or to the delayed ones. `mark`: '+' when a run of it was begun, else ''.
local function put_back(work, member, text, failures, delay, mark)
    local deliveries, attempts, crashes, old, _, rest = parts_of(text, 33, member)
    local available = digits(now + delay)
    mark = old == '+' and old or mark
    leave(work, member, format('%s %d %s %s%s %s', deliveries, attempts + failures, crashes, mark, available, rest))
    line_up(work, member, delay > 0 and available)
end

local function note_errors(work, member, text)
    local first = byte(text)
    if first == 61 then -- =
        push(work.edits, {member, 'error', sub(text, 2)})
    elseif first == 123 then -- {
        local edit = {member}
        for name, value in pairs(cjson.decode(text)) do
            push_pair(edit, name, value)
        end
        push(work.edits, edit)
    end
end

-- By verb. `at`: where its arguments begin.
local verbs = {}

function verbs.a(work, member, _, at, id, verb)
    push(work.ended, member)
    push(work.ids, id)
    if verb == 'A' or verb == 'U' then
        push(work.given, id)
    end
    if verb == 'u' or verb == 'U' then
        push(work.unique, {member, id, tonumber(ARGV[at])})
    end
end

verbs.A, verbs.u, verbs.U = verbs.a, verbs.a, verbs.a

function verbs.n(work, member, text, at)
    put_back(work, member, text, 1, tonumber(ARGV[at]), '')
    note_errors(work, member, ARGV[at + 1])
end

function verbs.r(work, member, text, at, _, verb)
    put_back(work, member, text, 0, tonumber(ARGV[at]), verb == 's' and '+' or '')
end

verbs.R, verbs.s = verbs.r, verbs.r

function verbs.b(work, member, text, at, id, verb)
    local deliveries, attempts, crashes, mark, available, rest = parts_of(text, 33, member)
    attempts = attempts + (verb == 'x' and 1 or 0)
    leave(work, member, format('%s %d %s %s%s %s', deliveries, attempts, crashes, mark, available, rest))
    if ARGV[at] == 'cancelled' then
        push(work.cancelled, member)
    end
    push(work.dead_ids, id)
    push(work.dead, member)
    push(work.edits, {member, 'reason', ARGV[at]})
    note_errors(work, member, ARGV[at + 1])
end

verbs.x = verbs.b

function verbs.f(work, member, _, at)
    push(work.forfeited, member)
    push(work.edits, {member, 'forfeited', ARGV[at]})
end

-- Its id is known in one queue or the other all the time: it does not end.
function verbs.m(work, member, text, _, id)
    push(work.ended, member)
    push(work.moved, member)
    push(work.moved_ids, id)
    leaving[id] = member
    if match(text, '^%d+ %d+ %d+ %S+ %d+ [uw]', 33) then
        push(work.unique, {member, id, 0})
    end
end

-- Free unique keys, and gather what moved messages take along: notes and batches. Then others may be added.
local function make_way(q, work)
    give_keys(q, work.unique)
    for i, text in ipairs(read_many('HMGET', q.notes, work.moved)) do
        carried[work.moved_ids[i]] = text and read_notes(text) or nil
    end
    for i, text in ipairs(take_batched(q, work.moved) or {}) do
        carried_batched[work.moved_ids[i]] = text or nil
    end
end

-- Leases end last: where the server refuses a command in between, the call is repeated, or the jobs come back.
local function write(q, work)
    for i, place in ipairs(read_many('HMGET', q.ids, work.moved_ids)) do
        if place and sub(place, 1, 19) == work.moved[i] then -- it goes by an outbox
            push(work.ids, work.moved_ids[i])
            push(work.given, work.moved_ids[i]) -- for a repeat of its enqueue, which looks only here
        end
    end
    for _, result in ipairs(work.results) do
        call('SET', unpack(result))
    end
    if #work.guarded > 0 then
        release_guards(q, work.guarded)
    end
    note_failures(q, work.edits)
    erase(q, work.ended, work.ids, work.given)
    write_many('HSET', q.record, work.changes)
    write_line(q, work)
    bury(q, work.dead)
    write_many('ZADD', q.leased, scored(now, work.forfeited))
    write_many('ZREM', q.leased, work.ended)
    write_many('ZREM', q.leased, work.left)
    wake_for(q, work)
    if #work.dead > 0 then
        notify_ended(q, work.dead_ids)
        cap_dead(q, tonumber(ARGV[2]), tonumber(ARGV[3]))
    end
    end_members(q, work.ended, 'succeeded') -- make_way has taken out those that moved
    end_members(q, work.cancelled, 'cancelled')
    end_members(q, work.dead, 'failed')
    notify_ended(q, work.result_ids)
end

-- The refusal for a message that is there and not leased: a claim may hold it.
local function judge_claimed(q, text)
    local claim = match(text, '\n%d+ %S+ (%x+)$')
    local held = claim and call('HGET', named_key(q, 'checkouts'), claim)
    return held and (tonumber(sub(held, 1, 16)) > now and 'w' or 'e') or 'n'
end

-- Note the results of accepted acks. `first` answers came before those of this queue, whose ids begin after `ids`.
-- Returns where the next words are.
local function note_results(q, work, at, letters, first, ids)
    local prefix = sub(q.ids, 1, -4) .. 'result:'
    local after = at + 1 + 3 * tonumber(ARGV[at])
    for word = at + 1, after - 1, 3 do
        local place = tonumber(ARGV[word])
        if letters[first + place] == 'o' then
            push(work.results, {prefix .. ARGV[ids + place], ARGV[word + 2], 'PX', ARGV[word + 1]})
            push(work.result_ids, ARGV[ids + place])
        end
    end
    return after
end

-- Judge one queue by ARGV from `at` on, and add the answers to `letters`. Returns where the next words are, and what is
-- to be written, if anything is.
local function judge_queue(q, at, letters)
    local count, word = tonumber(ARGV[at]), ARGV[at + 1]
    local holders, ids, needed = at + 1 + count, at + 1 + 2 * count, at + 2 + 3 * count
    if count == 0 then -- only follow-ups go there
        return needed
    end
    local members = {unpack(ARGV, at + 2, at + 1 + count)}
    local deadlines, records = read_many('ZMSCORE', q.leased, members), read_many('HMGET', q.record, members)
    local work, become, first = nothing_yet(), {}, #letters
    for i, member in ipairs(members) do
        local verb, deadline = sub(word, i, i), become[member]
        if deadline == nil then
            deadline = deadlines[i]
        end
        local holder = ARGV[holders + i]
        local guarded = #holder > 16
        local answer = check_holder(deadline, records[i], guarded and sub(holder, 1, 16) or holder)
        if answer == 'n' and records[i] then
            answer = judge_claimed(q, records[i])
        end
        push(letters, answer)
        if answer == 'o' then
            -- The next settlement of this message in the same call meets its new state.
            become[member] = verb == 'f' and now
            verbs[verb](work, member, records[i], needed, ARGV[ids + i], verb)
            if guarded then
                push(work.guarded, {member, holder, verb})
            end
        end
        needed = needed + NEEDS[verb]
    end
    return #word > count and note_results(q, work, needed, letters, first, ids) or needed, work
end

-- Add the messages that accepted settlements bring.
-- ARGV from `at` on: the queues' names, for each message the place of its settlement, and the `words` of add.lua.
local function follow_up(queues, at, letters)
    local names, places = {}, at + COUNT
    for number = 1, COUNT do
        names[number] = ARGV[at + number - 1]
    end
    local count, refused = (#ARGV - places) / 7, {} -- one word is the number itself, the others are seven a message
    for i = 1, count do
        refused[i] = letters[tonumber(ARGV[places + i - 1])] ~= 'o'
    end
    add(queues, names, ARGV, places + count + 1, count, refused, true)
end

-- From the order of the queues to that of the call.
local function in_place(letters, at)
    local placed = {}
    for i, letter in ipairs(letters) do
        placed[tonumber(ARGV[at + i - 1])] = letter
    end
    return placed
end

local known = recall(LEAD.memory)
if known then
    return '!' .. known
end
local queues, works, letters, at = {}, {}, {}, 4
for number = 1, COUNT do
    queues[number] = keys_of(number)
    at, works[number] = judge_queue(queues[number], at, letters)
end
if COUNT > 1 then
    letters, at = in_place(letters, at), at + #letters
end
check_writable(queues[1].leased)
for number, work in pairs(works) do
    make_way(queues[number], work)
end
if ARGV[at] then -- before any lease ends: where the server refuses a command, the jobs come back
    call('HDEL', queues[1].record, '') -- as `check_writable` does: what is added here must not be added again
    follow_up(queues, at, letters)
end
for number, work in pairs(works) do
    write(queues[number], work)
end
end_batches(queues[1])
local answers = table.concat(letters)
remember(LEAD.memory, ARGV[1], answers)
return answers
