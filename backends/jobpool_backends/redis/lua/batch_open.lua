-- Opens a batch that is not known. Answers: 1 when its parent is not open, else 0.
-- ARGV: its id, its parent, its callback on success, its callback in any case. Each but the id may be empty.

local q, batch, parent = keys_of(1), ARGV[1], ARGV[2]
local key = shared(q, 'batch:' .. batch)
if call('EXISTS', key) == 1 then
    return 0
end
if parent ~= '' and not may_join(q, parent, false) then
    return 1
end
local fields = {
    'open', 1, 'created', digits(now), 'total', 0, 'succeeded', 0, 'failed', 0, 'cancelled', 0, 'failed_ids', '',
}
for i, name in ipairs({'parent', 'on_success', 'on_done'}) do
    if ARGV[i + 1] ~= '' then
        push_pair(fields, name, ARGV[i + 1])
    end
end
write_many('HSET', key, fields)
if parent ~= '' then
    call('HINCRBY', shared(q, 'batch:' .. parent), 'total', 1)
    call('RPUSH', shared(q, 'nested:' .. parent), batch)
end
return 0
