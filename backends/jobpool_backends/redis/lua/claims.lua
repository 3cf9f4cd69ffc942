-- The ends of claims of queue q.
--
-- A claimed message is named twice, by the claim's checkout and by the message's record: in both until the claim ends.
-- A message whose record names another claim, or none, is left alone, even if a checkout names it.

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
