-- The answer to a settlement or renewal by this holder. Refusals come in the contract's order.

local function check_holder(deadline, text, holder)
    if not (deadline and text) then
        return 'n' -- no lease holds it
    end
    if tonumber(deadline) <= now then
        return 'e' -- its lease has expired
    end
    return sub(text, 1, 16) == holder and 'o' or 'w' -- ok, or somebody else holds it
end
