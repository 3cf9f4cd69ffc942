-- Marks a key done. ARGV: for how long, in µs; the call's token
-- Answers: 1 when it was not done before, but by this call, which may be repeated

local known = recall(LEAD.done)
if not known then
    remember(LEAD.done, ARGV[1], ARGV[2])
end
return (known or ARGV[2]) == ARGV[2] and 1 or 0
