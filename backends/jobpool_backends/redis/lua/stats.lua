-- Counts, at any length in the same time, and when the oldest waiting message was enqueued.
-- Answers: waiting, delayed, leased, dead, and the µs since the enqueue of the oldest (-1 for none). Then the numbers
-- of posted messages that are free, delayed, claimed, or have ended with their lives. Claimed jobs are leased ones.

local DUE = 1000 -- due messages not fetched since, among which the oldest is looked for

local q = keys_of(1)
local has_claims = call('EXISTS', q.posts, q.postsdelayed, q.postsclaimed, q.claimed, q.claims, q.expired) > 0
if has_claims then
    sweep_claims(q, SWEEP)
end
local waiting, delayed = call('ZCARD', q.ready), call('ZCARD', q.delayed)
local due = delayed > 0 and call('ZCOUNT', q.delayed, '-inf', now) or 0
local candidates, oldest = waiting > 0 and firsts_in(q.ready) or {}, nil
for _, member in ipairs(due > 0 and call('ZRANGE', q.delayed, '-inf', now, 'BYSCORE', 'LIMIT', 0, DUE) or {}) do
    push(candidates, member)
end
for _, member in ipairs(candidates) do
    if not oldest or sub(member, 4) < sub(oldest, 4) then
        oldest = member
    end
end
local text = oldest and call('HGET', q.record, oldest)
local enqueued = text and match(text, '^%d+ %d+ %d+ %S+ (%d+)')

local answers = {
    waiting + due,
    delayed - due,
    call('ZCARD', q.leased),
    call('ZCARD', q.dead),
    enqueued and math.max(0, now - enqueued) or -1,
    0, 0, 0, 0,
}
if has_claims then
    -- Ended messages beyond those that a call removes count as removed, and are taken for free ones.
    local over, ripe = call('ZCOUNT', q.lives, '-inf', now), call('ZCOUNT', q.postsdelayed, '-inf', now)
    answers[3] = answers[3] + call('ZCARD', q.claimed)
    answers[6] = math.max(0, call('ZCARD', q.posts) + ripe - over)
    answers[7], answers[8] = call('ZCARD', q.postsdelayed) - ripe, call('ZCARD', q.postsclaimed)
    answers[9] = (call('GET', q.expired) or 0) + over
end
return answers
