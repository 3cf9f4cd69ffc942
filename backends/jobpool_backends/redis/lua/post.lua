-- Adds messages that no pool runs. Needs LEAD.last, the key of the last sequence that was given.
-- ARGV: the queue's name, the number of messages, and their ids. Then for each 'p', or 'q' when its producer gave the
-- id, life and delay in µs ('' = forever, at once), and its body.

local PRIORITY = '005'

local q, name, count = keys_of(1), ARGV[1], tonumber(ARGV[2])
local new = {ids = {}, records = {}, bodies = {}, ready = {}, delayed = {}, later = {}, lives = {}}

local function note_post(id, member, at)
    local life, delay = ARGV[at + 1], ARGV[at + 2]
    local due = delay ~= '' and digits(now + delay)
    line_up(new, member, due)
    local ends = life ~= '' and digits(now + life) or '-'
    if life ~= '' then
        push_pair(new.lives, ends, member)
    end
    push_pair(new.ids, id, member .. ' ' .. name)
    local head = format('0 0 0 %s %s %s%s ', due or '-', digits(now), ARGV[at], id)
    push_pair(new.records, member, with_tail(head, 0, ends, '-'))
    push_pair(new.bodies, member, ARGV[at + 3])
end

local ids, given = {}, {}
for i = 1, count do
    ids[i] = ARGV[2 + i]
    given[#given + 1] = ARGV[count + 4 * i - 1] == 'q' and ids[i] or nil
end
sweep_claims(q, SWEEP)
local known = known_among(q, ids, given, given, {})
local seq = last_sequence()
for i, id in ipairs(ids) do
    if not known[id] then
        known[id] = true -- the same id again is the same message
        seq = seq + 1
        note_post(id, PRIORITY .. format('%016.0f', seq), count + 4 * i - 1)
    end
end
if #new.ids > 0 then
    write_line(post_sets(q), new)
    write_many('ZADD', q.lives, new.lives)
    call('SADD', q.queues, name)
    call('SET', LEAD.last, digits(seq))
    write_many('HSET', q.body, new.bodies)
    write_many('HSET', q.record, new.records)
    write_many('HSET', q.ids, new.ids) -- last, as in add.lua
end
