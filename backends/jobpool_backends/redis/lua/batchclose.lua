-- Lets a batch end when its last member has. ARGV: its id

local q, batch = keys_of(1), ARGV[1]
local key = shared(q, 'batch:' .. batch)
if call('HGET', key, 'open') == '1' then
    call('HSET', key, 'open', 0)
    touched[batch] = {succeeded = 0, failed = 0, cancelled = 0, failed_ids = {}}
    finish(q)
end
