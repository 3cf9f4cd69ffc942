-- The first entries of an outbox. ARGV: how many at most; after how many bytes to end

local entries, bytes = call('LRANGE', LEAD.outbox, 0, ARGV[1] - 1), 0
for number, entry in ipairs(entries) do
    bytes = bytes + #entry
    if bytes > tonumber(ARGV[2]) then
        return {unpack(entries, 1, number)}
    end
end
return entries
