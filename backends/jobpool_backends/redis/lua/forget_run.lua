-- A done key is not done any more. Answers: 1 when it was

local known = recall(LEAD.done)
call('DEL', LEAD.done)
return known and 1 or 0
