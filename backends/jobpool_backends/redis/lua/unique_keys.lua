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

-- These messages are gone. The key of each is known for as many µs more; with 0 it is free at once.
local function give_keys(q, members, ids, lasts)
    local keys = read_many('HMGET', named_key(q, 'keyed'), members)
    for i, key in ipairs(keys) do
        local name = key and named_key(q, 'unique:' .. key)
        if name and recall(name) == ids[i] then
            if lasts[i] > 0 then
                remember(name, lasts[i], ids[i])
            else
                call('DEL', name)
            end
        end
    end
    write_many('HDEL', named_key(q, 'keyed'), members)
end
