-- Counts, at any length in the same time, and when the oldest waiting message was enqueued.
-- Answers: waiting, delayed, leased, dead; µs since the enqueue of the oldest, -1 for none

local DUE = 1000 -- messages that fell due and were not fetched since, among which the oldest is looked for

local q = keys_of(1)
local waiting, delayed = call('ZCARD', q.ready), call('ZCARD', q.delayed)
local clock = waiting + delayed > 0 and call('TIME') or {0, 0} -- of an empty queue nobody asks how old it is
local now = clock[1] * 1000000 + clock[2]
local due = delayed > 0 and call('ZCOUNT', q.delayed, '-inf', now) or 0
local oldest

local function consider(member)
    if member and (not oldest or sub(member, 4) < sub(oldest, 4)) then
        oldest = member
    end
end

local first = waiting > 0 and call('ZRANGE', q.ready, 0, 0)[1]
while first do -- the first of each priority
    consider(first)
    first = call('ZRANGE', q.ready, format('[%03d', sub(first, 1, 3) + 1), '+', 'BYLEX', 'LIMIT', 0, 1)[1]
end
for _, member in ipairs(due > 0 and call('ZRANGE', q.delayed, '-inf', now, 'BYSCORE', 'LIMIT', 0, DUE) or {}) do
    consider(member)
end
local text = oldest and call('HGET', q.record, oldest)
local enqueued = text and match(text, '^%d+ %d+ %d+ %S+ (%d+)')
return {
    waiting + due,
    delayed - due,
    call('ZCARD', q.leased),
    call('ZCARD', q.dead),
    enqueued and math.max(0, now - enqueued) or -1,
}
