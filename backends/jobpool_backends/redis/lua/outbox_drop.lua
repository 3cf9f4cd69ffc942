-- Remove the first entries of an outbox. ARGV: how the first one begins; how many
-- If it begins otherwise, another call has removed it, and with it the next ones.

local first = call('LINDEX', LEAD.outbox, 0)
if first and sub(first, 1, #ARGV[1]) == ARGV[1] then
    call('LTRIM', LEAD.outbox, ARGV[2], -1)
end
