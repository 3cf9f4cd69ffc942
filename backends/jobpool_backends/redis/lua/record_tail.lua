-- The claims and lives of a record, after a line break at its end: `claims life claim`. Most records have none.

local function tail_of(text)
    local cut = string.find(text, '\n', 1, true)
    if not cut then
        return 0, '-', '-'
    end
    local claims, life, claim = match(text, '^(%d+) (%S+) (%S+)$', cut + 1)
    return tonumber(claims or 0), life or '-', claim or '-'
end

local function with_tail(text, claims, life, claim)
    local head = match(text, '^[^\n]*')
    if claims == 0 and life == '-' and claim == '-' then
        return head
    end
    return format('%s\n%d %s %s', head, claims, life, claim)
end

-- Return whether this record, of a message that is not leased, is of a posted one.
local function is_post(text)
    return match(text, '^%d+ %d+ %d+ %S+ %d+ [pq]') ~= nil
end

-- A life is over at the very moment of its end.
local function has_ended(life)
    return life ~= '-' and (tonumber(life) or now + 1) <= now
end
