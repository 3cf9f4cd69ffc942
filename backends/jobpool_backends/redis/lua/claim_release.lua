-- Ends a claim. ARGV: its id
-- Answers: how many messages that frees

local q = keys_of(1)
return live_claim(q, ARGV[1]) and end_claims(q, {ARGV[1]}) or 0
