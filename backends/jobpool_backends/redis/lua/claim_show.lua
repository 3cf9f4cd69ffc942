-- Answers: a claim, as `shown` has it, nil for none. ARGV: its id

local q = keys_of(1)
local text = live_claim(q, ARGV[1])
return text and shown(q, text)
