-- Part of every script: commands with many arguments. Keys of a queue are the fields of a table, q.

local call, byte, format, match, sub = redis.call, string.byte, string.format, string.match, string.sub

-- A whole number as digits: Lua's own way would round sixteen of them.
local function digits(number)
    return format('%.0f', number)
end

-- Lua passes some 8,000 arguments to a function, and no more.
local MAX_ARGUMENTS = 6000

-- A read of many values: one answer for each.
local function read_many(command, key, values)
    local count = #values
    if count <= MAX_ARGUMENTS then
        return count > 0 and call(command, key, unpack(values)) or {}
    end
    local answers = {}
    for first = 1, count, MAX_ARGUMENTS do
        local last = math.min(first + MAX_ARGUMENTS - 1, count)
        for _, answer in ipairs(call(command, key, unpack(values, first, last))) do
            answers[#answers + 1] = answer
        end
    end
    return answers
end

local function push(list, value)
    list[#list + 1] = value
end

local function push_pair(list, name, value)
    local size = #list
    list[size + 1], list[size + 2] = name, value
end

-- A write of many members, or of pairs; nothing for none.
local function write_many(command, key, values)
    local count = #values
    for first = 1, count, MAX_ARGUMENTS do
        call(command, key, unpack(values, first, math.min(first + MAX_ARGUMENTS - 1, count)))
    end
end

-- Before a script removes or changes anything: the server refuses it here if it may not write to sorted sets. Else it
-- would refuse in the middle, and what has left one place would be in no other. While its memory is full, the server
-- lets a script add only after a command that may remove. Neither of these two changes anything.
local function check_writable(key)
    call('ZREM', key, '')
    call('ZADD', key, 'XX', 0, '')
end

-- Members as ZADD takes them, all with the same score: written once here, and not by the server for each of them.
local function scored(score, members)
    local pairs_of, written = {}, digits(score)
    for i, member in ipairs(members) do
        pairs_of[2 * i - 1], pairs_of[2 * i] = written, member
    end
    return pairs_of
end
