"""History: the ends of attempts, kept beyond their messages as rows.

`row` makes a row, masked; `places` keep the newest of each name, in a file or in the broker; `writer` is the thread
between the pool and a place.
"""
