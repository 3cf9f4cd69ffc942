"""Dead letters, made by hand on a real beanstalkd, and who looks at them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import greenstalk
import pytest
from support.servers import BeanstalkServer, fresh_name

from jobpool.clock import ManualClock
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import encode
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.beanstalk.address import Address, read_address
from jobpool_backends.beanstalk.bulk import BulkChanger
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.inspect import Inspector
from jobpool_backends.beanstalk.records import Record, to_bytes

QUEUE = "mails"
NOW = 1_800_000_000.0
LARGEST = 2**20


class Administrator:
    """One client, with connections of its own."""

    def __init__(self, address: Address, clock: ManualClock) -> None:
        self.connections = Connections(address, clock)
        self.inspector = Inspector(self.connections)
        self.bulk_changer = BulkChanger(self.connections, self.inspector)


@dataclass
class BeanstalkRig:
    """Tubes of a test's own."""

    server: BeanstalkServer
    prefix: str = field(default_factory=lambda: f"{fresh_name()}.")

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.address = read_address(self.server.url, {"tube_prefix": self.prefix})
        self.raw = self.server.client(self.prefix + QUEUE)
        self._administrators: list[Administrator] = []
        self.admin = self.administrator()
        self.inspector = self.admin.inspector
        self.bulk_changer = self.admin.bulk_changer

    def administrator(self) -> Administrator:
        self._administrators.append(Administrator(self.address, self.clock))
        return self._administrators[-1]

    def close(self) -> None:
        for administrator in self._administrators:
            administrator.connections.close()
        self.raw.close()

    # --- making ----------------------------------------------------------------------------------------

    def put(self, ident: str, *, delay: int = 0, queue: str = QUEUE) -> int:
        """A message that is alive; the server's number of it."""
        self.raw.use(self.prefix + queue)
        packed = to_bytes(Record(ident, self.clock.wall()), body(ident, queue=queue), LARGEST)
        return self.raw.put(packed, priority=5, delay=delay)

    def bury(self, record: Record, *, queue: str = QUEUE, priority: int = 5, ttr: int = 30) -> int:
        """A dead letter with this header; the server's number of it."""
        packed = to_bytes(record, body(record.id, queue=queue, priority=priority), LARGEST)
        return self.bury_bytes(packed, queue=queue, priority=priority, ttr=ttr)

    def bury_bytes(self, packed: bytes, *, queue: str = QUEUE, priority: int = 5, ttr: int = 30) -> int:
        self.raw.use(self.prefix + queue)
        number = self.raw.put(packed, priority=priority, ttr=ttr)
        self.raw.bury(self.raw.reserve_job(number), priority)
        return number

    def bury_many(self, idents: Iterable[str], **fields: object) -> list[int]:
        return [self.bury(died(ident, **fields)) for ident in idents]

    # --- looking ---------------------------------------------------------------------------------------

    def counts(self, queue: str = QUEUE) -> tuple[int, int, int, int]:
        """Ready, delayed, reserved and buried jobs, as the server tells."""
        told = self.raw.stats_tube(self.prefix + queue)
        return (
            told["current-jobs-ready"],
            told["current-jobs-delayed"],
            told["current-jobs-reserved"],
            told["current-jobs-buried"],
        )

    def buried(self) -> list[int]:
        """The server's numbers of the buried jobs, in its order; they are gone then."""
        found = []
        self.raw.use(self.prefix + QUEUE)
        while True:
            try:
                job = self.raw.peek_buried()
            except greenstalk.NotFoundError:
                return found
            found.append(job.id)
            self.raw.delete(job)

    def steps(self) -> int:
        """How many jobs were ever buried, for anybody."""
        return self.raw.stats()["cmd-bury"]


def died(ident: str, **fields: object) -> Record:
    """The header of a dead letter."""
    return Record(ident, NOW - 60.0, **{"reason": "failed", "died_at": NOW, **fields})  # type: ignore[arg-type]


def body(ident: str, *, queue: str = QUEUE, priority: int = 5) -> bytes:
    definition = JobDefinition("send", {"to": ident}, queue=queue, priority=priority)
    return encode(definition, identifier=ident, queue=queue, signer=EnvelopeSigner(), now=NOW)


# --- fixtures of a file: `server, rig = server_of_file, rig_on_it` ----------------------------------------------


@pytest.fixture(scope="module")
def server_of_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeanstalkServer]:
    with BeanstalkServer(tmp_path_factory.mktemp("beanstalkd")) as server:
        yield server


@pytest.fixture
def rig_on_it(server: BeanstalkServer) -> Iterator[BeanstalkRig]:
    rig = BeanstalkRig(server)
    yield rig
    rig.close()
