"""Prints letters that wait in a queue, and books each one: a worker that is not a pool, with claims.

    python letters.py post 12      # twelve letters
    python letters.py              # claims, prints and books them until none is free

Start it on as many machines as you like: no letter is in two hands at once. When one of them dies, its letters are free
again at the end of its claim, and another one prints them.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from jobpool import BackendUnavailable, Claim, ClaimMessage, ClaimNotFound, Jobs, Queue

TTL = 300
"""Seconds that nobody else gets a letter for, if this process is not heard of again."""


def open_books(path: str) -> sqlite3.Connection:
    books = sqlite3.connect(path)
    books.execute("CREATE TABLE IF NOT EXISTS letters (id TEXT, recipient TEXT)")
    return books


def print_letters(queue: Queue, books: sqlite3.Connection) -> int:
    """Print what one claim brings; how many letters that were."""
    claim = queue.claim(limit=10, ttl=TTL, grace=60)
    if claim is None:
        return 0
    done = 0
    with claim, renewed(claim):  # whatever happens, the letters that are left are free again
        for letter in claim.messages:
            if not print_one(letter, books):
                break
            done += 1
    return done


def print_one(letter: ClaimMessage, books: sqlite3.Connection) -> bool:
    """Print and book one letter; False when it is not ours any more, and then nothing is booked."""
    try:
        with books:  # a transaction: committed at the end of the block, rolled back by an exception
            books.execute("INSERT INTO letters VALUES (?, ?)", (letter.id, letter.payload["to"]))
            letter.delete()  # the last step before the commit
    except ClaimNotFound:
        print(f"the claim on {letter.id} has ended: rolled back, somebody else prints it", file=sys.stderr)
        return False
    return True


@contextmanager
def renewed(claim: Claim) -> Iterator[None]:
    """Renew the claim at a third of its time, for as long as the block lasts."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(claim.ttl / 3):
            try:
                claim.renew()
            except BackendUnavailable:
                continue  # there is time for two more
            except ClaimNotFound:
                return  # the next delete says so too, where something can be done about it

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def main(words: list[str]) -> None:
    with Jobs() as jobs:
        letters = jobs.queue("letters", max_claims=5)
        if words[:1] == ["post"]:
            letters.post(({"to": f"reader-{number}"} for number in range(int(words[1]))), ttl=14 * 86400)
            return
        with closing(open_books("books.db")) as books:
            while done := print_letters(letters, books):
                print(f"{done} printed")


if __name__ == "__main__":
    main(sys.argv[1:])
