-- Answers: the value of each record, nil for none. ARGV: their keys

local values = {}
for i, ends in ipairs(read_many('ZMSCORE', LEAD.ends, ARGV)) do
    values[i] = ends and tonumber(ends) > now and call('HGET', LEAD.values, ARGV[i])
end
return values
