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
