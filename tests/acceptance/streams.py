"""One test's nodes between two topics: what is sent in, what comes out, and what the store has of it."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.acceptance.checker import Blow, Evidence, HandOver, Intake, Message, Row, Taken, Verdict, judge, judge_intake
from tests.acceptance.cluster import HEARTBEAT_MS, LEASE_MS, WINDOW
from tests.acceptance.installation import Installation
from tests.acceptance.place import SOAK, Place, ServeProcess
from tests.services.databases import execute
from tests.services.topics import MakeTopic, Written, end_offsets, read, told
from tests.waiting import PATIENCE_S, now_ms, until

SESSION = '{ "session.timeout.ms" = 3000, "heartbeat.interval.ms" = 500 }'
"""The death of a consumer is noticed within the lease of a short run."""

RATE = 1_000 if SOAK else 300
AHEAD_MS = (100, 20_000 if SOAK else 2_000)
"""So many messages a second are sent, so long before their moment."""

PARTITIONS, LETTER_PARTITIONS = 6, 3
STAMPED = {"message.timestamp.type": "LogAppendTime"}
LARGE = {"max.message.bytes": "20000000"}
"""The topic that jobs come from takes messages that others do not."""

EXACT = {"large": 9007199254740993, "text": "grüße \u0000 \U0001f4e8", "list": [1.5, None, True, {"deep": []}]}
"""Data that is easily changed on its way."""

APP = """[apps.work]
handler = "kafka"
topic = "{topic}"
key = "task-{{number}}"
headers = {{ node = "{node}" }}
required = ["number"]
"""


MOST_UNDER_WAY = 50_000
"""Messages that the client takes before the broker has them."""


class Sender:
    """Writes to a topic, each message once, whatever the broker suffers meanwhile."""

    def __init__(self, servers: str, topic: str) -> None:
        self._topic = topic
        self._refused: list[object] = []
        self._producer = Producer({**told(servers), "enable.idempotence": True, "message.max.bytes": 20_000_000})

    def send(self, value: bytes | None, key: bytes | None = None, partition: int = -1) -> None:
        """Give one message on its way."""
        while len(self._producer) >= MOST_UNDER_WAY:
            self._producer.poll(0.1)
        self._producer.produce(self._topic, value, key, partition, on_delivery=self._note)
        self._producer.poll(0)

    def _note(self, error: object, _: object) -> None:
        if error:
            self._refused.append(error)

    def arrived(self) -> None:
        """Wait until the broker has all of them."""
        left = self._producer.flush(PATIENCE_S)
        assert not left, f"{left} messages did not arrive"
        assert not self._refused, self._refused[:3]


class Feed(threading.Thread):
    """Sends messages at a steady rate until it is told that it is enough."""

    STEP_S = 0.02

    def __init__(self, sender: Sender) -> None:
        super().__init__(daemon=True)
        self._sender = sender
        self._enough = threading.Event()
        self.sent = 0

    def run(self) -> None:
        start_s = time.monotonic()
        while not self._enough.wait(self.STEP_S):
            for _ in range(round((time.monotonic() - start_s) * RATE) - self.sent):
                self._sender.send(message(self.sent, now_ms() + random.randint(*AHEAD_MS)))
                self.sent += 1

    def end(self) -> None:
        """Let it end, and wait until the broker has everything."""
        self.give_up()
        self.join(PATIENCE_S)
        self._sender.arrived()

    def give_up(self) -> None:
        """Send nothing more."""
        self._enough.set()


def message(number: int, due_ms: int, **more: object) -> bytes:
    """A request for a job, its moment in one of the ways that a moment can be written."""
    at: int | str = due_ms
    if number % 2:
        at = datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(timespec="milliseconds")
    data = {"number": number, **EXACT}
    return json.dumps({"appName": Place.app, "scheduledTime": at, "jobData": data, **more}).encode()


def moment_ms(at: int | str) -> int:
    """The moment that a message asks for."""
    return at if isinstance(at, int) else round(datetime.fromisoformat(at).timestamp() * 1000)


class Report(NamedTuple):
    """What is to be said about a run."""

    taken: Taken
    verdict: Verdict
    late_ms: Sequence[int]  # how late each job came out first, after its moment or its message was there, in order

    @property
    def faults(self) -> dict[str, Sequence[object]]:
        return self.taken.faults | self.verdict.faults

    def __str__(self) -> str:
        late = self.late_ms
        return (
            f"{len(late):,} messages, {len(self.verdict.explained)} + {len(self.verdict.woken)} repeats explained, "
            f"late by p50 {late[len(late) // 2]} ms, p99 {late[len(late) * 99 // 100]} ms, most {late[-1]} ms"
        )


class Stream(Place):
    """A folder where nodes take jobs from one topic and publish them to another, through a database of their own."""

    def __init__(self, folder: Path, installation: Installation, url: str, servers: str, make: MakeTopic) -> None:
        super().__init__(folder, installation)
        self.url = url
        self.servers = servers
        self.source = make("in", PARTITIONS, **STAMPED, **LARGE)
        self.out = make("out", PARTITIONS, **STAMPED)
        self.letters_topic = make("letters", LETTER_PARTITIONS, **STAMPED)
        self.group = f"group-of-{self.source}"
        self.apps = APP  # where it says so, with the topic and the name of the node
        self._feed: Feed | None = None
        self.arrange(self.config, "")

    def arrange(self, file: Path, name: str) -> None:
        """Write the configuration of the node that has this name: it puts it on all that it publishes."""
        file.write_text(
            f'[store]\nurl = "{self.url}"\n'
            f'[node]\nlease = "{LEASE_MS}ms"\nheartbeat = "{HEARTBEAT_MS}ms"\n{WINDOW}'
            f'[kafka]\nbootstrap_servers = "{self.servers}"\n'
            f'[[ingest]]\ntopic = "{self.source}"\ndlq_topic = "{self.letters_topic}"\n'
            f'group_id = "{self.group}"\nproperties = {SESSION}\n'
            f"{self.apps.format(topic=self.out, node=name)}"
        )

    # Processes

    def node(self, config: Path | None = None) -> ServeProcess:
        """Start a node whose records show that they are of it."""
        name = f"node-{len(self.nodes) + 1}"
        config = config or self.folder / f"{name}.toml"
        self.arrange(config, name)
        return super().node(config)

    def some_nodes(self, count: int) -> list[ServeProcess]:
        """Start nodes, and wait until each reads a part of the topic."""
        nodes = [self.node() for _ in range(count)]
        self.shared(nodes)
        return nodes

    def shared(self, nodes: Collection[ServeProcess]) -> None:
        """Wait until each of these nodes, and nobody else, reads a part of the topic."""
        for node in nodes:
            node.ready()
        until(lambda: self._is_shared(len(nodes)), f"{len(nodes)} nodes share {PARTITIONS} partitions", every_s=0.1)

    def _is_shared(self, count: int) -> bool:
        parts = self.parts()
        return len(parts) == count and sum(parts) == PARTITIONS and max(parts) - min(parts) <= 1

    def parts(self) -> list[int]:
        """How many partitions each member of the group reads, as the broker knows it."""
        admin = AdminClient(told(self.servers))  # an answer comes only while it lives
        try:
            members = admin.describe_consumer_groups([self.group])[self.group].result(PATIENCE_S).members
        except KafkaException:  # a broker that has just started does not know yet
            return []
        return [len(member.assignment.topic_partitions) for member in members if member.assignment]

    def sender(self) -> Sender:
        return Sender(self.servers, self.source)

    def feed(self) -> Feed:
        """Begin to send messages."""
        self._feed = Feed(self.sender())
        self._feed.start()
        return self._feed

    def end(self) -> None:
        if self._feed is not None:
            self._feed.give_up()
        super().end()
        for node in self.nodes:
            print(f"{node.name} said:\n{node.stderr[-3000:]}")

    # What the broker has

    def messages(self) -> list[Written]:
        return read(self.servers, self.source)

    def published(self) -> list[Written]:
        return read(self.servers, self.out)

    def letters(self, count: int | None = None) -> list[Written]:
        return read(self.servers, self.letters_topic, count)

    def ends(self, topic: str) -> dict[int, int]:
        """Where the partitions of a topic end that have records."""
        with closing(Consumer({**told(self.servers), "group.id": "nobody"})) as consumer:
            return {partition: end for partition, end in end_offsets(consumer, topic).items() if end}

    # What the store has, read without the scheduler

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        if not self.url.startswith("sqlite:"):
            return execute(self.url, statement)
        with closing(self.connect()) as database:
            return database.execute(statement).fetchall()

    def places(self, group: str | None = None) -> dict[int, int]:
        """How far the group has come, by partition; those that it has read nothing of are left out."""
        columns, table = "partition_number, next_offset", "scheduler_ingest_offsets"
        group = group or self.group
        which = f"group_id = '{group}' AND topic = '{self.source}' AND next_offset > 0"
        found = self.query(f"SELECT {columns} FROM {table} WHERE {which}")
        return dict(found)

    def job_rows(self) -> list[Row]:
        """The number and the moment of every job."""
        return [
            Row(json.loads(data)["number"], scheduled_ms)
            for table in self._tables()
            for scheduled_ms, data in self.query(f"SELECT scheduled_ms, job_data FROM {table}")
        ]

    def unsettled(self) -> set[tuple[str, int]]:
        return {
            (str(json.loads(data)["number"]), attempt)
            for table in self._tables()
            for data, attempt in self.query(f"SELECT job_data, attempt FROM {table} WHERE status = 'pending'")
        }

    def alone(self) -> set[str]:
        return set()  # no node is killed so often, and so soon after another, that it comes to this

    def statuses(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for table in self._tables():
            found.update(dict(self.query(f"SELECT status, count(*) FROM {table} GROUP BY status")))
        return found

    def letter_states(self) -> Counter[str]:
        """How many dead letters the store has in which state."""
        return Counter(dict(self.query("SELECT state, count(*) FROM scheduler_dead_letters GROUP BY state")))

    def _tables(self) -> list[str]:
        schema = f"IN ('{urlsplit(self.url).path[1:]}', 'public')"
        tables = f"SELECT table_name FROM information_schema.tables WHERE table_schema {schema}"
        if self.url.startswith("sqlite:"):
            tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
        return [table for (table,) in self.query(tables) if "_scheduled_jobs_" in table]

    # Waiting

    def through(self, within_s: float = PATIENCE_S + AHEAD_MS[1] / 1000) -> None:
        """Wait until everything in the topic was read, and every job of it is settled."""
        ends = self.ends(self.source)
        until(lambda: self.places() == ends, "everything is read", within_s, every_s=0.2)
        until(lambda: not self.statuses()["pending"], "all jobs settled", within_s, every_s=0.2)

    # Judgement

    def report(self, blows: Sequence[Blow] = ()) -> Report:
        """Judge by what the broker and the database have."""
        messages = self.messages()
        asked = [asked_for(each) for each in messages]
        there_ms = {str(one.number): each.timestamp_ms for one, each in zip(asked, messages, strict=True)}
        promised = {str(one.number): one.due_ms for one in asked}
        pids = {node.name: node.pid for node in self.nodes}
        handed_over = [hand_over(record, promised, pids) for record in self.published()]
        first_ms = {one.job: one.wall_ms for one in sorted(handed_over, key=lambda one: -one.wall_ms)}
        late_ms = [ms - max(promised[job], there_ms[job]) for job, ms in first_ms.items() if job in promised]
        taken = judge_intake(self.intake(asked))
        verdict = judge(Evidence(promised, handed_over, blows))
        if strange := {one.job for one in verdict.unexplained}:
            print(*(one for one in handed_over if one.job in strange), *blows, sep="\n")
        return Report(taken, verdict, sorted(late_ms))

    def intake(self, asked: Sequence[Message] | None = None) -> Intake:
        """What became of the messages."""
        messages = asked if asked is not None else [asked_for(each) for each in self.messages()]
        return Intake(messages, self.job_rows(), self.places())

    def has_everything(self, report: Report, feed: Feed) -> None:
        """Each message has one job, which is done and came out; none was bad."""
        statuses, letters = self.statuses(), self.letter_states()
        assert not report.faults, report.faults
        assert statuses == {"done": feed.sent}, f"{statuses} of {feed.sent} messages"
        assert not letters, letters
        assert not self.ends(self.letters_topic), "there are dead letters on the topic"


StreamOn = Callable[..., Stream]
"""`stream_on("sqlite")` makes a stream on an empty database of this kind."""


def asked_for(record: Written) -> Message:
    """What one message asks for."""
    said = json.loads(record.value or b"")
    return Message(said["jobData"]["number"], moment_ms(said["scheduledTime"]), record.partition, record.offset)


def hand_over(record: Written, promised: Mapping[str, int], pids: Mapping[str, int]) -> HandOver:
    """What one record says about its job; the data in it must be as it was sent."""
    said, headers = json.loads(record.value or b""), dict(record.headers)
    data = dict(said["jobParams"])
    number = data.pop("number")
    assert data == EXACT, record
    assert record.key == f"task-{number}".encode(), record
    assert (headers["job-id"] or b"").decode() == said["jobId"], record
    attempt, name = int(headers["job-attempt"] or b""), (headers["node"] or b"").decode()
    return HandOver(str(number), attempt, promised.get(str(number), 0), record.timestamp_ms, pids[name])
