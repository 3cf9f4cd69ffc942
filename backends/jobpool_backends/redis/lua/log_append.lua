-- Adds lines to logs. ARGV: how many lines each keeps; then for each log its name, how many lines, the lines

local last, at = ARGV[1] - 1, 2
for number = 1, COUNT do
    local log, count = keys_of(number).log, tonumber(ARGV[at + 1])
    call('ZADD', LEAD.logs, 0, ARGV[at])
    local first = at + 2 + math.max(0, count - last - 1) -- the older ones would be cut off at once
    at = at + 2 + count
    while first < at do
        local behind = math.min(first + MAX_ARGUMENTS, at)
        call('LPUSH', log, unpack(ARGV, first, behind - 1))
        first = behind
    end
    call('LTRIM', log, 0, last)
end
