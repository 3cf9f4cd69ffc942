-- The ends of claims of queue q, and of posted messages' lives, when their time has come.

local SWEEP = 1000 -- messages of ended claims, and as many whose lives have ended, in one script

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
