-- ARGV: the queues' names, in the order of their keys; how many messages; what add.lua says of them
-- Answers: what add returns

local queues, names = {}, {}
for number = 1, COUNT do
    queues[number], names[number] = keys_of(number), ARGV[number]
end
return add(queues, names, ARGV, COUNT + 2, tonumber(ARGV[COUNT + 1]))
