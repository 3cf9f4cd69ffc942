-- Counts a start under each rate, whose keys are KEYS. ARGV: its token; of each, how many are allowed in how many µs.
-- Answers: of each the µs until there is room, or 0 when it was counted.

local answers = {}
for i, key in ipairs(KEYS) do
    local window = tonumber(ARGV[2 * i + 1])
    answers[i] = wait_for(key, tonumber(ARGV[2 * i]), window, ARGV[1])
    if answers[i] == 0 then
        count_start(key, window, ARGV[1])
    end
end
return answers
