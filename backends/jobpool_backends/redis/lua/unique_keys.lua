-- Keys under which a queue has one message only. `unique:KEY` holds its id and, as for `recall`, the time until which
-- that is so. `keyed` holds the key of each live or dead message, by its member.

local LIVING = '9999999999999999'

-- The id of the message that has this key, nil for none.
local function known_under(q, key)
    local name = named_key(q, 'unique:' .. key)
    local id = recall(name)
    if id and call('PTTL', name) < 0 and call('HEXISTS', q.ids, id) == 0 then
        return nil -- edited by hand: the message is gone, without an end
    end
    return id
end

local function take_key(q, key, id, member)
    call('SET', named_key(q, 'unique:' .. key), LIVING .. id)
    call('HSET', named_key(q, 'keyed'), member, key)
end

-- Each of `ended`, {member, id, lasts}, is gone. Its key is known for as many µs more; with 0 it is free at once.
local function give_keys(q, ended)
    local members = {}
    for i, message in ipairs(ended) do
        members[i] = message[1]
    end
    for i, key in ipairs(read_many('HMGET', named_key(q, 'keyed'), members)) do
        local _, id, lasts = unpack(ended[i])
        local name = key and named_key(q, 'unique:' .. key)
        if name and recall(name) == id then
            if lasts > 0 then
                remember(name, lasts, id)
            else
                call('DEL', name)
            end
        end
    end
    write_many('HDEL', named_key(q, 'keyed'), members)
end
