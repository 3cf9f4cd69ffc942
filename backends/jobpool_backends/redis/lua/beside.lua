-- Keys of queue q that have a name of somebody's own in them, or that most calls have no use for. They are put together
-- here and are not among KEYS, so that a call without them carries nothing of them. Like the others they have the queue's
-- name in braces, so they are in its slot. While a cluster moves that slot, a command on one that is not there fails the
-- script: so each is looked at before anything is written that must not be done by half.

local function beside(q, name)
    return sub(q.record, 1, -7) .. name -- `record` has six letters
end
