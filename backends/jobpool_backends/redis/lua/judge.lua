-- May this holder settle or renew? The refusals in the order that the contract gives.

local function judge(deadline, text, holder)
    if not (deadline and text) then
        return 'n' -- nobody holds it
    end
    if tonumber(deadline) <= now then
        return 'e' -- its lease has expired
    end
    return sub(text, 1, 16) == holder and 'o' or 'w' -- ok, or somebody else holds it
end
