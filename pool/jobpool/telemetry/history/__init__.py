"""History: the ends of attempts, kept beyond their messages as rows.

`row` makes a row, masked; `places` parses `history = …`; `file` and `table` keep the newest of each name; `writer` is
the thread between the pool and a place.
"""
