-- Claims of queue q: their ends, and the ends of posted messages' lives.
--
-- A claimed message is named twice, by the claim's checkout and by the message's record: in both until the claim ends.
-- A message whose record names another claim, or none, is left alone, even if a checkout names it.

local SWEEP = 1000 -- messages of ended claims, and as many whose lives have ended, in one script
local HEAD = 64 -- of a checkout: end, ttl, grace and time of making or renewal, in µs; then come the members

-- Write the checkout of a claim; return its head.
local function check_out(q, id, ttl, grace, members)
    local head = format('%016.0f %014.0f %014.0f %016.0f', now + ttl, ttl, grace, now)
    call('HSET', q.checkouts, id, head .. ' ' .. table.concat(members))
    call('ZADD', q.claims, now + ttl, id)
    return head
end

-- The checkout of a claim that has not ended; nil for none.
local function live_claim(q, id)
    local text = call('HGET', q.checkouts, id)
    return text and tonumber(sub(text, 1, 16)) > now and text or nil
end

local function members_of(text)
    local members = {}
    for at = HEAD + 1, #text, 19 do
        members[#members + 1] = sub(text, at, at + 18)
    end
    return members
end

-- A claim for an answer: the time, the head of its checkout, and of its messages the members, records and bodies.
local function shown(q, text)
    local members = members_of(text)
    return {digits(now), sub(text, 1, HEAD - 1), members, read_many('HMGET', q.record, members), bodies_of(q, members)}
end

-- Free those of these members that the claims of the same places still hold; return how many.
local function set_free(q, members, claims)
    local jobs, posts, changes = {}, {}, {}
    for i, text in ipairs(read_many('HMGET', q.record, members)) do
        local count, life, claim = tail_of(text or '')
        if claim == claims[i] then
            local kind = is_post(text) and posts or jobs
            push(kind, members[i])
            push_pair(changes, members[i], with_tail(text, count, life, '-'))
        end
    end
    check_writable(q.claimed)
    write_many('HSET', q.record, changes)
    write_many('ZADD', q.ready, scored(0, jobs))
    write_many('ZADD', q.posts, scored(0, posts))
    write_many('ZREM', q.claimed, jobs)
    write_many('ZREM', q.postsclaimed, posts)
    if #jobs > 0 then
        wake_one(q)
    end
    return #jobs + #posts
end

-- End these claims; return how many messages that frees.
local function end_claims(q, ids)
    local members, claims = {}, {}
    for i, text in ipairs(read_many('HMGET', q.checkouts, ids)) do
        for _, member in ipairs(members_of(text or '')) do
            members[#members + 1], claims[#claims + 1] = member, ids[i]
        end
    end
    local freed = set_free(q, members, claims)
    write_many('ZREM', q.claims, ids)
    write_many('ZREM', q.claimids, ids)
    write_many('HDEL', q.checkouts, ids)
    return freed
end

-- End due claims that hold about `most` messages together. Return how many messages; an empty claim counts as one.
local function end_due_claims(q, most)
    local done = 0
    while done < most do
        local ids = call('ZRANGE', q.claims, '-inf', now, 'BYSCORE', 'LIMIT', 0, math.ceil((most - done) / 20))
        if #ids == 0 then
            break
        end
        done = done + math.max(#ids, end_claims(q, ids))
    end
    return done
end

local function remove_posts(q, members, records)
    for _, key in ipairs({q.posts, q.postsdelayed, q.postslater, q.postsclaimed, q.lives}) do
        write_many('ZREM', key, members)
    end
    erase_recorded(q, members, records)
end

-- Remove posted messages whose lives have ended. Their ids are remembered from that moment on.
local function end_posts(q, members)
    local records, memories = read_many('HMGET', q.record, members), {}
    for _, text in ipairs(records) do
        local id = text and match(text, '^%d+ %d+ %d+ %S+ %d+ q(%S+)')
        if id then
            local _, life = tail_of(text)
            memories[#memories + 1], memories[#memories + 2] = digits(life + MEMORY), id
        end
    end
    remove_posts(q, members, records)
    write_many('ZADD', q.ended, memories)
    call('INCRBY', q.expired, #members)
end

-- Free messages of ended claims, and remove ended posts, about `most` of each; return how many of each.
local function sweep_claims(q, most)
    if call('EXISTS', q.claims, q.lives) == 0 then
        return 0, 0
    end
    local freed = end_due_claims(q, most)
    local over = call('ZRANGE', q.lives, '-inf', now, 'BYSCORE', 'LIMIT', 0, most)
    if #over > 0 then
        end_posts(q, over)
    end
    return freed, #over
end

local function promote_posts(q, most)
    return promote({delayed = q.postsdelayed, later = q.postslater, ready = q.posts}, most)
end
