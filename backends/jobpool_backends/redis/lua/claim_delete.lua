-- Deletes messages. ARGV: the claim that holds them ('' = they are free), the queue's name, their ids.
-- Answers: a letter each, d gone, f held by others. nil when the claim has ended.

local q, claim, name = keys_of(1), ARGV[1], ARGV[2]
local known = claim ~= '' and live_claim(q, claim)
if claim ~= '' and not known then
    return nil
end

-- Return whether it may be deleted. A message without a live claim is free, unless it is leased.
local function is_ours(text, leased)
    local _, _, held = tail_of(text)
    if known then
        return held == claim
    end
    return not leased and (held == '-' or not live_claim(q, held))
end

local members = {} -- of these ids; '' for those that are not in this queue
for i, place in ipairs(read_many('HMGET', q.ids, {unpack(ARGV, 3)})) do
    members[i] = place and sub(place, 21) == name and sub(place, 1, 19) or ''
end
local records, dead = read_many('HMGET', q.record, members), read_many('ZMSCORE', q.dead, members)
local leased = known and {} or read_many('ZMSCORE', q.leased, members)
local letters, gone, jobs, posts = {}, {}, {members = {}, records = {}}, {members = {}, records = {}}
for i, member in ipairs(members) do
    local text = records[i]
    local _, life = tail_of(text or '')
    letters[i] = 'd'
    if text and not (dead[i] or has_ended(life) or gone[member]) then
        if not is_ours(text, leased[i]) then
            letters[i] = 'f'
        else
            gone[member] = true
            local kind = is_post(text) and posts or jobs
            push(kind.members, member)
            push(kind.records, text)
        end
    end
end
if #jobs.members > 0 then
    for _, key in ipairs(known and {q.claimed} or {q.ready, q.delayed, q.later, q.claimed}) do
        write_many('ZREM', key, jobs.members)
    end
    erase_recorded(q, jobs.members, jobs.records)
    end_members(q, jobs.members, 'cancelled')
    end_batches(q)
end
if #posts.members > 0 then
    remove_posts(q, posts.members, posts.records)
end
if known and next(gone) then
    local left = {}
    for _, member in ipairs(members_of(known)) do
        left[#left + 1] = not gone[member] and member or nil
    end
    call('HSET', q.checkouts, claim, sub(known, 1, HEAD) .. table.concat(left))
end
return table.concat(letters)
