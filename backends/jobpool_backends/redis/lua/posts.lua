-- Posted messages of queue q: their sets, and their ends.

-- The sets of posted messages, under the names of those of jobs.
local function post_sets(q)
    return {ready = q.posts, delayed = q.postsdelayed, later = q.postslater}
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
