-- Wakes one of those who wait for queue q; when that one's fetch leaves something behind, it rings again.

local function ring(q)
    if call('EXISTS', q.bell) == 0 then
        call('RPUSH', q.bell, 1)
    end
end
