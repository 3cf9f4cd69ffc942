-- The checkouts of claims: a claim of queue q is one field of a hash.

local HEAD = 64 -- of a checkout: end, ttl, grace and time of making or renewal, in µs; then come the members

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
