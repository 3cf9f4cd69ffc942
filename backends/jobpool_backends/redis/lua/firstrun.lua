-- Marks a key done. ARGV: for how long, in µs
-- Answers: 1 when it was not done before

if recall(LEAD.done) then
    return 0
end
remember(LEAD.done, ARGV[1], '')
return 1
