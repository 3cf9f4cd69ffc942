-- Return the parts of a record that begins at place `at`, as texts: three counters, the mark, when it is available, and
-- the rest. Any other text was written by hand. It gets counters that cannot be true, so that no pool runs the message.
local function parts_of(text, at, member)
    local deliveries, attempts, crashes, mark, available, rest =
        match(text, '^(%d+) (%d+) (%d+) (%+?)(%S+) (%d+ %a%S+ .*)$', at)
    if rest then
        return deliveries, attempts, crashes, mark, available, rest
    end
    return '0', '9999999999', '0', '', '-', '0 m' .. member .. ' ?'
end

-- The fields that were noted of a message; none of them where the note was written by hand.
local function read_notes(text)
    local is_json, fields = pcall(cjson.decode, text or '')
    return is_json and type(fields) == 'table' and fields or {}
end

-- The priority of a member, in digits; nil for one that was put there by hand.
local function priority_of(member)
    return match(member or '', '^[012]%d%d')
end
