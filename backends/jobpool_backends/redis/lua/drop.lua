-- Removes records. ARGV: their keys

many('HDEL', LEAD.values, ARGV)
many('ZREM', LEAD.names, ARGV)
many('ZREM', LEAD.ends, ARGV)
