-- Everything about some messages. ARGV: the bytes of the largest body to bring, 0 = none, then members.
-- Answers: the time in µs, then of each, in order, its state, a time, record, notes, and body. The state is w d l x, c
-- when a claim holds it, - when it is gone. The time, in µs, is when it is due, when its lease or claim ends, or when
-- it died. 0 stands for a larger body. The last messages are left out when the answer grows too large: ask for them
-- again.

local BYTES = 8 * 1048576

local q, largest = keys_of(1), tonumber(ARGV[1])
local members = {unpack(ARGV, 2)}
local records, leased = read_many('HMGET', q.record, members), read_many('ZMSCORE', q.leased, members)
local delayed, dead = read_many('ZMSCORE', q.delayed, members), read_many('ZMSCORE', q.dead, members)
local posts_delayed = call('EXISTS', q.postsdelayed) == 1 and read_many('ZMSCORE', q.postsdelayed, members) or {}
local answers, bytes = {digits(now)}, 0

for i, member in ipairs(members) do
    if bytes > BYTES then
        break
    end
    local state, score, at = 'w', false, #answers
    local _, life, claim = tail_of(records[i] or '')
    local due, held = delayed[i] or posts_delayed[i], claim ~= '-' and live_claim(q, claim)
    if not records[i] or has_ended(life) then
        state, records[i] = '-', false
    elseif leased[i] then
        state, score = 'l', leased[i]
    elseif dead[i] then
        state, score = 'x', dead[i]
    elseif held then
        state, score = 'c', sub(held, 1, 16)
    elseif due then
        state, score = tonumber(due) > now and 'd' or 'w', due
    end
    local notes = records[i] and call('HGET', q.notes, member)
    local body = records[i] and 0
    if body and largest > 0 and call('HSTRLEN', q.body, member) <= largest then
        body = call('HGET', q.body, member)
    end
    answers[at + 1], answers[at + 2], answers[at + 3] = state, score, records[i]
    answers[at + 4], answers[at + 5] = notes, body
    bytes = bytes + (notes and #notes or 0) + (body and body ~= 0 and #body or 0)
end
return answers
