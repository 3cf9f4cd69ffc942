-- Answers: the value of a record, nil for none. ARGV: its key

local ends = call('ZSCORE', LEAD.ends, ARGV[1])
return ends and tonumber(ends) > now and call('HGET', LEAD.values, ARGV[1])
