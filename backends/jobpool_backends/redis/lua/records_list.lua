-- Records by key. ARGV: from where to where, as ZRANGE BYLEX takes it, and how many.
-- Answers: 1 when they are too large for one answer, else 0. Then key and value of each. After 1, ask for those after
-- the last key.

local BYTES, PIECE = 8 * 1048576, 500

local from, to, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local answers, bytes, keys = {0}, 0
repeat
    keys = call('ZRANGE', LEAD.names, from, to, 'BYLEX', 'LIMIT', 0, PIECE)
    local ends = read_many('ZMSCORE', LEAD.ends, keys)
    for i, key in ipairs(keys) do
        local value = ends[i] and tonumber(ends[i]) > now and call('HGET', LEAD.values, key)
        if value then
            if #answers > 2 * most then
                return answers
            end
            if bytes > BYTES then
                answers[1] = 1
                return answers
            end
            push_pair(answers, key, value)
            bytes = bytes + #key + #value
        end
    end
    from = '(' .. (keys[#keys] or '')
until #keys < PIECE
return answers
