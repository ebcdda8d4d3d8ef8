"""What tests of topic doors start from: a store, doors that read a topic into it, and a store that has bad days."""

import asyncio
import json
import secrets
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

from infinite_scheduler import Client
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.ingest.door import TopicDoor
from infinite_scheduler.model import Accepted, JobSpec
from infinite_scheduler.observe.events import Event
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.inbox import DeadLetter, Inbox, LetterQuery, Letters, LetterState, Move, TopicPosition
from tests.services.topics import write
from tests.waiting import PATIENCE_S, until_async

E = TypeVar("E", bound=Event)

AT = "2035-11-03T22:00:00"
QUICK = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200, "topic.metadata.refresh.interval.ms": 500}
"""Groups that find out soon who has come and gone."""


def message(number: int, app: str = "sms", **fields: Any) -> str:
    return json.dumps({"appName": app, "scheduledTime": AT, "jobData": {"n": number}, **fields})


def messages(numbers: Iterable[int], **fields: Any) -> list[str]:
    return [message(number, **fields) for number in numbers]


class BadDays(Inbox):
    """An inbox whose store may be away, lose its answers, take long, or stumble over a message."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.away = False
        self.refused = 0  # how often it was asked while it was away
        self.lost_answers = 0
        self.stumble: Callable[[Sequence[JobSpec]], Exception | None] = lambda specs: None
        self.gate: asyncio.Event | None = None  # takes wait for it
        self.waiting = 0
        self.takes: list[tuple[int, int]] = []  # how many jobs and letters
        self.before_take: Callable[[], Any] | None = None

    async def take(
        self, specs: Sequence[JobSpec], letters: Sequence[DeadLetter], moves: Sequence[Move]
    ) -> Sequence[Accepted]:
        if self.gate is not None:
            self.waiting += 1
            await self.gate.wait()
        self._check()
        if (error := self.stumble(specs)) is not None:
            raise error
        accepted = await self._inbox.take(specs, letters, moves)
        self.takes.append((len(specs), len(letters)))
        if self.lost_answers:
            self.lost_answers -= 1
            raise StoreUnavailable("the answer was lost")
        return accepted

    async def positions(self, group: str | None = None, topic: str | None = None) -> Sequence[TopicPosition]:
        self._check()
        return await self._inbox.positions(group, topic)

    async def reset(self, moves: Sequence[Move]) -> None:
        self._check()
        await self._inbox.reset(moves)

    async def letters(self, query: LetterQuery) -> Letters:
        self._check()
        return await self._inbox.letters(query)

    async def letter(self, letter_id: str) -> DeadLetter | None:
        return await self._inbox.letter(letter_id)

    async def mark(self, letter_ids: Collection[str], state: LetterState, note: str | None = None) -> None:
        self._check()
        await self._inbox.mark(letter_ids, state, note)

    async def drop(self, letter_ids: Collection[str]) -> Mapping[str, LetterState]:
        return await self._inbox.drop(letter_ids)

    async def letter_states(self, letter_ids: Collection[str]) -> Mapping[str, LetterState]:
        self._check()
        return await self._inbox.letter_states(letter_ids)

    async def replay(self, letter_id: str, spec: JobSpec) -> Accepted:
        return await self._inbox.replay(letter_id, spec)

    async def letter_counts(self) -> Mapping[tuple[str, str], int]:
        return await self._inbox.letter_counts()

    async def live_keys(self) -> int:
        self._check()
        return await self._inbox.live_keys()

    def _check(self) -> None:
        if self.away:
            self.refused += 1
            raise StoreUnavailable("the store is away")


class TopicRig:
    """A SQLite store with the app `sms`, and doors that lead into it."""

    def __init__(self, folder: Path, servers: str | Mapping[str, Any], topic: str, dlq_topic: str | None) -> None:
        self._file = folder / "scheduler.db"
        self._client = Client(f"sqlite:///{self._file}")
        self.servers = servers
        self.topic = topic
        self.dlq_topic = dlq_topic
        self.group = f"group-{secrets.token_hex(4)}"
        self.told: list[Event] = []
        self._doors: list[TopicDoor] = []

    async def open(self) -> None:
        await self._client.open()
        for app in ("sms", "mail"):
            await self.store.register(app, 4)
        self.inbox = BadDays(self.store.inbox())

    @property
    def store(self) -> Store:
        return self._client._store

    def config(self, **options: Any) -> KafkaIngestConfig:
        servers = self.servers if isinstance(self.servers, str) else self.servers["bootstrap.servers"]
        known = (
            {} if isinstance(self.servers, str) else {k: v for k, v in self.servers.items() if k != "bootstrap.servers"}
        )
        properties = {**QUICK, **known, **options.pop("properties", {})}
        named = {"bootstrap_servers": servers, "topic": self.topic, "dlq_topic": self.dlq_topic, "group_id": self.group}
        return KafkaIngestConfig(**{**named, "poll_timeout_ms": 200, **options, "properties": properties})

    def door(
        self, *, handlers: Mapping[str, Handler] | None = None, inbox: Inbox | None = None, **options: Any
    ) -> TopicDoor:
        """A new door, not started yet."""
        door = TopicDoor(self.config(**options), inbox or self.inbox, handlers or {}, SystemClock(), self.told.append)
        self._doors.append(door)
        return door

    async def started(self, **options: Any) -> TopicDoor:
        """A new door that reads its partitions."""
        door = self.door(**options)
        door.start()
        await until_async(lambda: door.ready)
        return door

    async def close(self) -> None:
        await asyncio.gather(*(door.stop() for door in self._doors))
        await self._client.close()

    async def send(self, values: Iterable[bytes | str | None], topic: str | None = None, **more: Any) -> None:
        await asyncio.to_thread(write, self.servers, topic or self.topic, values, **more)

    def heard(self, kind: type[E]) -> list[E]:
        return [event for event in self.told if isinstance(event, kind)]

    def numbers(self, app: str = "sms") -> Counter[int]:
        """The `n` of every job in the store, and how often it is there."""
        return Counter(json.loads(row)["n"] for (row,) in self._rows("job_data", app))

    def count(self, app: str = "sms") -> int:
        """How many jobs are in the store: cheap enough to be asked while doors are at work in this process."""
        return sum(row[0] for row in self._rows("COUNT(*)", app))

    def _rows(self, what: str, app: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True)) as connection:
            tables = connection.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE ?", (f"{app}_scheduled_jobs%",)
            ).fetchall()
            return [row for (table,) in tables for row in connection.execute(f"SELECT {what} FROM {table}")]

    async def letters(self, **query: Any) -> Sequence[DeadLetter]:
        found = await self.store.inbox().letters(LetterQuery(oldest_first=True, limit=1000, room=8 << 20, **query))
        return found.letters

    async def positions(self) -> dict[int, int]:
        found = await self.store.inbox().positions(self.group, self.topic)
        return {position.source.partition: position.next for position in found}

    async def has(self, numbers: Collection[int], within_s: float = PATIENCE_S) -> None:
        """Wait until the store has these jobs; each must be there once, and no other."""
        wanted = Counter(set(numbers))
        try:
            await until_async(lambda: self.count() >= len(wanted), within_s=within_s)
        finally:
            missing = wanted - self.numbers()
            assert not missing, f"{len(missing)} are missing, such as {sorted(missing)[:5]}"
        assert self.numbers() == wanted


@asynccontextmanager
async def rig(
    folder: Path, servers: str | Mapping[str, Any], topic: str, dlq_topic: str | None = None
) -> AsyncIterator[TopicRig]:
    """A rig, closed at the end."""
    made = TopicRig(folder, servers, topic, dlq_topic)
    await made.open()
    try:
        yield made
    finally:
        await made.close()
