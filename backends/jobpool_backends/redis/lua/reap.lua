-- Takes back messages whose lease has expired, and clears old things away: dead letters beyond the caps, and remembered
-- ids. If no more leases are left to look at, it also ends claims and posted messages whose time is over.
--
-- ARGV 1, 2: how many leases to look at, at most, and from which on, in the order of their deadlines. 3: the µs since a
-- lease was taken or renewed, from which on it is taken back too (-1 = only expired ones). 4 to 8:
-- max_crashes, window, back_off and back_off_cap in µs, a seed for the delays. 9, 10: dead_max, and dead_max_age in µs.
-- Answers: how many leases were looked at, and how many messages of ended claims were freed or ended posts removed.
-- Then id, crashes, cause and '1' for dead, of each that was taken back.

local q = keys_of(1)
local visibility, max_crashes, window = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local back_off, back_off_cap = tonumber(ARGV[6]), tonumber(ARGV[7])
math.randomseed(tonumber(ARGV[8]))

local function delay_after(crashes)
    if crashes <= 1 then
        return 0
    end
    return math.floor(math.random() * math.min(back_off_cap, back_off * 2 ^ math.min(crashes - 2, 60)) + 0.5)
end

-- The leases to look at, each with its deadline: expired ones are the first.
local function leases()
    local most, first = tonumber(ARGV[1]), tonumber(ARGV[2])
    if visibility < 0 then
        return call('ZRANGE', q.leased, '-inf', now, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
    end
    return call('ZRANGE', q.leased, first, first + most - 1, 'WITHSCORES')
end

-- It has ended, or was taken that long ago, or there is no message (edited by hand).
local function is_over(deadline, text)
    if not text or deadline <= now then
        return true
    end
    local ttl = tonumber(sub(text, 18, 31)) or 0
    return visibility >= 0 and deadline - ttl <= now - visibility
end

local work = {members = {}, changes = {}, ready = {}, delayed = {}, later = {}, dead = {}, edits = {}, told = {}}

-- Charge one crash, and say where the message goes; returns when it is available.
local function place(member, crashes, available, edit)
    if max_crashes > 0 and crashes > max_crashes then
        push(work.dead, member)
        push_pair(edit, 'reason', 'crash-limit')
        return available
    end
    local delay = delay_after(crashes)
    available = digits(now + delay)
    line_up(work, member, delay > 0 and available)
    return available
end

local function take_back(member, text, note)
    local past = read_notes(note)
    local deliveries, attempts, before, mark, available, rest = parts_of(text, 33, member)
    local crashes = now - (tonumber(past.crashed) or now) > window and 1 or math.min(before, 2 ^ 32) + 1
    local cause = past.forfeited ~= '' and past.forfeited or 'lease expired'
    local edit, died = {member, 'forfeited', false, 'cause', cause, 'crashed', digits(now)}, #work.dead
    available = place(member, crashes, available, edit)
    push_pair(work.changes, member, format('%s %s %d %s%s %s', deliveries, attempts, crashes, mark, available, rest))
    push(work.edits, edit)
    push_pair(work.told, match(rest, '^%d+ %a(%S+)'), crashes)
    push_pair(work.told, cause, #work.dead > died and '1' or '0')
end

local found, members = leases(), {}
for i = 1, #found, 2 do
    push(members, found[i])
end
local records, notes = read_many('HMGET', q.record, members), read_many('HMGET', q.notes, members)
for i, member in ipairs(members) do
    if is_over(tonumber(found[2 * i]), records[i]) then
        push(work.members, member)
        if records[i] then
            take_back(member, records[i], notes[i])
        end
    end
end
if #work.members > 0 then
    check_writable(q.leased)
end
note_failures(q, work.edits)
write_many('HSET', q.record, work.changes)
write_line(q, work)
bury(q, work.dead)
write_many('ZREM', q.leased, work.members)
wake_for(q, work)
end_members(q, work.dead, 'failed')
end_batches(q)
cap_dead(q, tonumber(ARGV[9]), tonumber(ARGV[10]))
sweep(q, 1000)
local room, freed, ended = tonumber(ARGV[1]) - #members, 0, 0
if room > 0 then
    freed, ended = sweep_claims(q, room)
end
return {#members, freed + ended, unpack(work.told)}
