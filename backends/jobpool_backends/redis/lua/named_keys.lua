-- Keys of queue q with a user's name in them, or that most calls do not need. They are put together here and are not in
-- KEYS, so that a call without them does not carry them. Like the others they have the queue's name in braces, so they
-- are in its slot. While a cluster moves that slot, a command on a key that is not there fails the script. So each key
-- is looked at before anything is written that must not be done by half.

local function named_key(q, name)
    return sub(q.record, 1, -7) .. name -- `record` has six letters
end
