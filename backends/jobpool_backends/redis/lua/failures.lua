-- The failures of messages of queue q, as JSON that a person can read.

-- The fields that were noted of a message; none of them where the note was written by hand.
local function read_notes(text)
    local is_json, fields = pcall(cjson.decode, text or '')
    return is_json and type(fields) == 'table' and fields or {}
end

-- Each edit is {member, name, text, name, text, …}, and false for a text removes it.
local function note_failures(q, edits)
    local members, found, changes = {}, {}, {}
    for _, edit in ipairs(edits) do
        if not found[edit[1]] then
            push(members, edit[1])
            found[edit[1]] = true
        end
    end
    for i, text in ipairs(read_many('HMGET', q.notes, members)) do
        found[members[i]] = text and read_notes(text) or {}
    end
    for _, edit in ipairs(edits) do
        for at = 2, #edit, 2 do
            found[edit[1]][edit[at]] = edit[at + 1] or nil
        end
    end
    for _, member in ipairs(members) do
        push_pair(changes, member, cjson.encode(found[member]))
    end
    write_many('HSET', q.notes, changes)
end
