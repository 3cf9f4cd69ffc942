"""What became of attempts, kept beyond their messages: rows, where they are kept, how they get there and are read.

`row` makes a row, masked; `places` says what `history = …` means; `file` and `table` keep the newest of each name;
`writer` is the thread between the pool and a place.
"""
