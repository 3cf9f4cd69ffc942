-- Counts a start. ARGV: how many are allowed; within how many µs; its token
-- Answers: µs until there is room; 0 when it was counted

local window = tonumber(ARGV[2])
local left = wait_for(LEAD.rate, tonumber(ARGV[1]), window, ARGV[3])
if left == 0 then
    count_start(LEAD.rate, window, ARGV[3])
end
return left
