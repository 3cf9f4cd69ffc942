-- Change many messages for a person. ARGV: 'delete', 'retry', 'resume' or 'cancel'; then member and record of each, as
-- they were seen. One that has changed since is left alone. A lease changes the record, so leased ones are left alone.
-- Answers: how many were changed

local q = keys_of(1)
local members, seen = {}, {}
for at = 2, #ARGV, 2 do
    members[#members + 1], seen[#seen + 1] = ARGV[at], ARGV[at + 1]
end
local records, dead = read_many('HMGET', q.record, members), read_many('ZMSCORE', q.dead, members)
local wanted, texts = {}, {}
for i, member in ipairs(members) do
    local wants = dead[i]
    if ARGV[1] == 'cancel' then
        wants = not dead[i] and records[i] and not is_post(records[i])
    end
    if records[i] == seen[i] and (ARGV[1] == 'delete' or wants) then
        wanted[#wanted + 1], texts[#texts + 1] = member, records[i]
    end
end
local function take_out()
    for _, key in ipairs({q.ready, q.delayed, q.later, q.dead, q.buried}) do
        write_many('ZREM', key, wanted)
    end
    for _, text in ipairs(texts) do
        if is_post(text) or string.find(text, '\n', 1, true) then
            for _, key in ipairs({q.posts, q.postsdelayed, q.postslater, q.postsclaimed, q.claimed, q.lives}) do
                write_many('ZREM', key, wanted)
            end
            break
        end
    end
end

check_writable(q.ready)
if ARGV[1] == 'delete' then
    erase_recorded(q, wanted, texts)
    take_out()
elseif ARGV[1] == 'cancel' then
    local edits = {}
    for i, member in ipairs(wanted) do
        edits[i] = {member, 'reason', 'cancelled'}
    end
    note_failures(q, edits)
    take_out()
    bury(q, wanted)
elseif #wanted > 0 then
    local afresh, changes, edits, jobs, posts = ARGV[1] == 'retry', {}, {}, {}, {}
    if afresh then
        write_many('HDEL', q.notes, wanted)
    end
    for i, member in ipairs(wanted) do
        local deliveries, attempts, crashes, _, _, rest = parts_of(texts[i], 1, member)
        local counters = attempts .. ' ' .. crashes
        if afresh then
            counters, rest = '0 0', with_tail(rest, 0, '-', '-')
        end
        local kind = is_post(texts[i]) and posts or jobs
        kind[#kind + 1] = member
        changes[2 * i - 1], changes[2 * i] = member, format('%s %s +%s %s', deliveries, counters, digits(now), rest)
        edits[i] = not afresh and {member, 'reason', false} or nil
    end
    note_failures(q, edits)
    write_many('HSET', q.record, changes)
    take_out()
    write_many('ZADD', q.posts, scored(0, posts))
    write_many('ZADD', q.ready, scored(0, jobs))
    if #jobs > 0 then
        wake_one(q)
    end
end
if ARGV[1] == 'delete' or ARGV[1] == 'cancel' then
    end_members(q, wanted, 'cancelled')
    end_batches(q)
end
return #wanted
