-- ARGV: the queues' names, in the order of their keys, the number of messages, and their `words` for `add`.
-- Answers: the ids that `add` returns, or a batch.

local queues, names = {}, {}
for number = 1, COUNT do
    queues[number], names[number] = keys_of(number), ARGV[number]
end
return add(queues, names, ARGV, COUNT + 2, tonumber(ARGV[COUNT + 1]))
