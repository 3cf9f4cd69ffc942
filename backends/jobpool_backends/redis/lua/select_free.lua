-- The first free messages of queue q, jobs and posts in one order, taken out of the sets in which they stand.

local DUE = 1000 -- delayed messages of each kind that are promoted at most
local LOOKS = 3000 -- messages to look at, at most: reached only if most of them cannot be taken
local WORN = 1000 -- messages found to be claimed too often, at most

-- The first members, and the sets in which they stand.
local function front(q, most)
    local jobs, posts = call('ZRANGE', q.ready, 0, most - 1), call('ZRANGE', q.posts, 0, most - 1)
    if #jobs == 0 then
        return posts, {q.posts}
    elseif #posts == 0 then
        return jobs, {q.ready}
    end
    for _, member in ipairs(posts) do
        jobs[#jobs + 1] = member
    end
    table.sort(jobs)
    for i = #jobs, most + 1, -1 do
        jobs[i] = nil
    end
    return jobs, {q.ready, q.posts}
end

-- Sort these members into lists, until `wanted` of them are free.
local function sort_out(q, members, found, wanted, max_claims)
    local free, records, over, ended = {}, {}, {}, {}
    for i, text in ipairs(read_many('HMGET', q.record, members)) do
        if #free == wanted or #found.worn == WORN then
            break
        end
        local claims, life = tail_of(text or '')
        if not text then
            over[#over + 1] = members[i] -- a member without a message: edited by hand
        elseif has_ended(life) then
            ended[#ended + 1] = members[i]
        elseif max_claims > 0 and claims >= max_claims then
            over[#over + 1] = members[i]
            found.worn[#found.worn + 1], found.worn_records[#found.worn + 1] = members[i], text
        else
            free[#free + 1], records[#free + 1] = members[i], text
        end
    end
    return free, records, over, ended
end

-- Take the first of these, as many as may be sent at once; they are added to those that are `over`.
local function take_free(q, free, records, found, over)
    local bodies, bytes = take_bodies(q, free, BYTES - found.bytes)
    found.bytes = found.bytes + bytes
    for i, body in ipairs(bodies) do
        over[#over + 1] = free[i]
        if body then
            local size = #found.members + 1
            found.members[size], found.records[size], found.bodies[size] = free[i], records[i], body
        end
    end
end

-- Return `members`, `records` and `bodies` of messages taken, `worn` and `worn_records` of those claimed `max_claims`
-- times already (0 = no limit). `again`: nothing was taken, but there is more to look at.
local function select_free(q, limit, max_claims)
    local found, looked = {members = {}, records = {}, bodies = {}, worn = {}, worn_records = {}, bytes = 0}, 0
    promote(q, DUE)
    promote(post_sets(q), DUE)
    repeat
        local members, sets = front(q, looked == 0 and limit or 100)
        local free, records, over, ended = sort_out(q, members, found, limit - #found.members, max_claims)
        take_free(q, free, records, found, over)
        for _, key in ipairs(sets) do
            write_many('ZREM', key, over)
        end
        if #ended > 0 then
            end_posts(q, ended)
        end
        looked = looked + #members
        local done = #members == 0 or #found.members == limit or found.bytes >= BYTES or #found.worn == WORN
    until done or looked >= LOOKS
    found.again = #found.members == 0 and looked >= LOOKS and #found.worn < WORN
    return found
end
