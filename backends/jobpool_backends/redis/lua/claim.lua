-- Claims messages.
-- ARGV: id of the claim, limit, ttl and grace in µs, max_claims, the caps dead_max, and dead_max_age in µs.
-- Answers: the claim, as `shown` has it. 0 when nothing is free, 1 when there is more to look at: ask again.

local q, id, ttl, grace = keys_of(1), ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])

-- Make messages that were claimed too often dead letters, which have no lives.
local function give_up(members, records)
    local changes, edits = {}, {}
    for i, member in ipairs(members) do
        changes[2 * i - 1], changes[2 * i] = member, with_tail(records[i], tail_of(records[i]), '-', '-')
        edits[i] = {member, 'reason', 'claim-limit'}
    end
    write_many('ZREM', q.lives, members)
    write_many('HSET', q.record, changes)
    note_failures(q, edits)
    bury(q, members)
    end_members(q, members, 'failed')
    end_batches(q)
    cap_dead(q, tonumber(ARGV[6]), tonumber(ARGV[7]))
end

-- The record of a message that this claim takes, and the end of its life.
local function take(text)
    local claims, life = tail_of(text)
    local longer = prolonged(life, now + ttl + grace)
    local deliveries, rest = match(text, '^(%d+)(.*)$')
    return with_tail(digits(deliveries + 1) .. rest, claims + 1, longer, id), longer ~= life and longer
end

local function hold(found)
    local jobs, posts, lives, changes = {}, {}, {}, {}
    for i, member in ipairs(found.members) do
        local kind = is_post(found.records[i]) and posts or jobs
        local text, life = take(found.records[i])
        push(kind, member)
        found.records[i] = text
        push_pair(changes, member, text)
        if life then
            push_pair(lives, life, member)
        end
    end
    write_many('ZADD', q.claimed, scored(0, jobs))
    write_many('ZADD', q.postsclaimed, scored(0, posts))
    write_many('ZADD', q.lives, lives)
    write_many('HSET', q.record, changes)
end

local known = live_claim(q, id)
if known then
    return shown(q, known)
end
sweep_claims(q, SWEEP)
if call('HEXISTS', q.checkouts, id) == 1 then
    end_claims(q, {id}) -- it has ended, but the sweep did not come so far
end
check_writable(q.claims)
call('HSET', q.checkouts, id, '') -- tried in the same way
call('HDEL', q.checkouts, id)
local found = select_free(q, tonumber(ARGV[2]), tonumber(ARGV[5]))
if #found.worn > 0 then
    give_up(found.worn, found.worn_records)
end
if #found.members == 0 then
    return found.again and 1 or 0
end
hold(found)
local head = check_out(q, id, ttl, grace, found.members)
call('ZADD', q.claimids, 0, id)
return {digits(now), head, found.members, found.records, found.bodies}
