-- Removes records. ARGV: their keys

write_many('HDEL', LEAD.values, ARGV)
write_many('ZREM', LEAD.names, ARGV)
write_many('ZREM', LEAD.ends, ARGV)
