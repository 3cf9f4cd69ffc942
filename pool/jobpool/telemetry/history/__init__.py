"""History: the ends of attempts, kept beyond their messages as rows."""
