-- A claim for an answer: the time, the head of its checkout, and of its messages the members, records and bodies.
local function shown(q, text)
    local members = members_of(text)
    return {digits(now), sub(text, 1, HEAD - 1), members, read_many('HMGET', q.record, members), bodies_of(q, members)}
end
