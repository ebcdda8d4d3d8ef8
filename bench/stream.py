"""How many jobs per second go from a topic through the store to another topic, and how late are they there?

    python -m bench.stream [--store sqlite|mariadb|postgres] [--rate 10000] [--seconds 60] [--runs 5]
    python -m bench.stream [--store sqlite|mariadb|postgres] --urgent [--jobs 50]

One node process, keys on, due in 5 to 120 seconds. When it starts, the topic has as many messages as would wait if it
had always been running: how fast they are accepted is `filled_per_s`. Then `rate` messages per second come in and are
due, for `seconds`: measured are the accepted and handed over jobs, and how far reading was behind at the end. Lateness
is the broker's LogAppendTime minus the due time. With --urgent, jobs that are due in 200 ms come one by one.

The raw limits are those of the plain clients with the same records: reading the input topic, writing the output topic,
and writing the rows into the store.
"""

import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.accept import raw
from bench.setting import APP, PAYLOAD, fresh_store, options_of, peak_mb, quantiles, report
from tests.services.catalogue import admin_url
from tests.services.databases import execute
from tests.services.topics import end_offsets, fresh_topics, told

PARTITIONS = 6
GROUP = "bench"
SOON_MS, LATER_MS = 5_000, 120_000
URGENT_MS = 200
REQUEST = b'{"appName":"%s","scheduledTime":%%d,"idempotencyKey":"%%s","jobData":{"due":%%d,%s}' % (
    APP.encode(),
    PAYLOAD.lstrip().removeprefix(b"{"),
)
"""Written without an encoder: the load generator should not be what is measured."""

RAW_RECORDS = 200_000
SLOW = 5000
"""The least messages per second that are written and accepted before the time counts."""

STAMPED = {"message.timestamp.type": "LogAppendTime"}


class Data(msgspec.Struct):
    due: int


class Record(msgspec.Struct, rename="camel"):
    job_params: Data


read_record = msgspec.json.Decoder(Record).decode


class Setup(NamedTuple):
    """A store and two topics."""

    url: str
    servers: str
    source: str
    out: str

    def config(self) -> str:
        return (
            f'[store]\nurl = "{self.url}"\n[kafka]\nbootstrap_servers = "{self.servers}"\n'
            f'[[ingest]]\ntopic = "{self.source}"\ndlq_topic = ""\ngroup_id = "{GROUP}"\n'
            f'[apps.{APP}]\nhandler = "kafka"\ntopic = "{self.out}"\n'
        )

    def ends(self, topic: str) -> int:
        """How many records a topic has."""
        with closing(Consumer({**told(self.servers), "group.id": "nobody"})) as consumer:
            return sum(end_offsets(consumer, topic).values())

    def taken(self) -> int:
        """How many messages the store counts as read."""
        query = "SELECT coalesce(sum(next_offset), 0) FROM scheduler_ingest_offsets"
        if not self.url.startswith("sqlite:"):
            return int(execute(self.url, query)[0][0])
        with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=60)) as database:
            return int(database.execute(query).fetchone()[0])


@contextmanager
def fresh_setup(store: str) -> Iterator[Setup]:
    servers = admin_url("kafka")
    with fresh_store(store) as url, fresh_topics(servers) as make:
        yield Setup(url, servers, make("bench-in", PARTITIONS, **STAMPED), make("bench-out", PARTITIONS, **STAMPED))


class Node:
    """`serve` in a process of its own, and its resource usage."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        config = folder / "bench.toml"
        config.write_text(setup.config())
        command = [sys.executable, "-m", "infinite_scheduler", "serve", "--config", str(config), "--json"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout
        assert b"started" in self._process.stdout.readline()

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mb(self) -> float:
        return peak_mb(self._process.pid)

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(120) == 0


@contextmanager
def node(setup: Setup) -> Iterator[Node]:
    with tempfile.TemporaryDirectory() as folder:
        running = Node(setup, Path(folder))
        try:
            yield running
            running.stop()
        finally:
            running._process.kill()
            running._process.wait()


# What comes in


class Writer:
    """Sends requests for jobs."""

    def __init__(self, servers: str, topic: str) -> None:
        own = {"enable.idempotence": True, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
        self._producer = Producer({**told(servers), **own})
        self._topic = topic

    def send(self, due_ms: int) -> None:
        value = REQUEST % (due_ms, os.urandom(16).hex().encode(), due_ms)
        while True:
            try:
                self._producer.produce(self._topic, value)
                break
            except BufferError:
                self._producer.poll(0.1)

    def serve(self) -> None:
        """Take the delivery reports of the messages."""
        self._producer.poll(0)

    def flush(self) -> None:
        assert not self._producer.flush(120)


class Sent(NamedTuple):
    """How many requests were sent, and how many of them are due before the end."""

    count: int
    due: int


def fill(setup: Setup, rate: int, start_ms: int, seconds: int) -> Sent:
    """Send the messages that would wait now, had this rate always gone on."""
    writer, count, due = Writer(setup.servers, setup.source), 0, 0
    for _ in range(rate * LATER_MS // 1000):
        due_ms = start_ms - random.randrange(LATER_MS) + random.randint(SOON_MS, LATER_MS)
        if due_ms >= start_ms:
            writer.send(due_ms)
            count += 1
            due += due_ms < start_ms + 1000 * seconds
    writer.flush()
    return Sent(count, due)


def feed(servers: str, topic: str, rate: int, start_ms: int, seconds: int) -> Sent:
    """Send this many per second, evenly."""
    writer, count, due = Writer(servers, topic), 0, 0
    while count < rate * seconds:
        now_ms = time.time_ns() // 1_000_000
        for _ in range(min(rate * seconds, rate * (now_ms - start_ms) // 1000) - count):
            due_ms = now_ms + random.randint(SOON_MS, LATER_MS)
            writer.send(due_ms)
            count += 1
            due += due_ms < start_ms + 1000 * seconds
        writer.serve()
        time.sleep(0.005)
    writer.flush()
    return Sent(count, due)


# What comes out


def late(setup: Setup, from_ms: int, until_ms: int) -> tuple["array[int]", int]:
    """How late the records are of jobs that were due in this time, and how many records were written in it."""
    late_ms, written = array("l"), 0
    for value, stamp_ms in records(setup.servers, setup.out):
        due_ms = read_record(value).job_params.due
        written += from_ms <= stamp_ms < until_ms
        if from_ms <= due_ms < until_ms:
            late_ms.append(stamp_ms - due_ms)
    return late_ms, written


def all_late(setup: Setup, from_ms: int, until_ms: int, due: int) -> tuple["array[int]", int]:
    """Like `late`, when all due jobs are out: none is lost, and none is there twice."""
    for _ in range(60):
        time.sleep(1)
        late_ms, written = late(setup, from_ms, until_ms)
        if len(late_ms) >= due:
            assert len(late_ms) == due, f"{len(late_ms)} records of {due} jobs"
            return late_ms, written
    raise AssertionError(f"{len(late_ms)} of {due} jobs came out")


def records(servers: str, topic: str) -> Iterator[tuple[bytes, int]]:
    """Value and LogAppendTime of every record in the topic."""
    own = {"group.id": "nobody", "enable.auto.commit": False, "queued.max.messages.kbytes": 16_384}
    with closing(Consumer({**told(servers), **own})) as consumer:
        ends = end_offsets(consumer, topic)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        left = sum(ends.values())
        while left > 0:
            for message in consumer.consume(5000, 1.0):
                assert message.error() is None, message.error()
                yield message.value() or b"", message.timestamp()[1]
                left -= 1


# Raw limits


def raw_consume(setup: Setup) -> float:
    """How many messages of the input topic the plain client reads per second."""
    began = time.perf_counter()
    count = sum(1 for _ in records(setup.servers, setup.source))
    return count / (time.perf_counter() - began)


def raw_produce(servers: str, count: int = RAW_RECORDS) -> float:
    """How many records like the node's the plain client writes per second, each reported back."""
    with fresh_topics(servers) as make:
        topic, reported = make("bench-raw", PARTITIONS, **STAMPED), 0

        def note(error: object, _: object) -> None:
            nonlocal reported
            assert error is None, error
            reported += 1

        producer = Producer({**told(servers), "enable.idempotence": True, "linger.ms": 1, "batch.size": 262_144})
        value, headers = b"x" * 450, [("job-id", b"x" * 36), ("job-attempt", b"1"), ("traceparent", b"x" * 55)]
        began = time.perf_counter()
        for number in range(count):
            while True:
                try:
                    producer.produce(topic, value, b"%036d" % number, on_delivery=note, headers=headers)  # type: ignore[arg-type]
                    break
                except BufferError:
                    producer.poll(0.01)
            if not number % 250:
                producer.poll(0)
        producer.flush()
        assert reported == count
        return count / (time.perf_counter() - began)


# Questions


def sustained(store: str, rate: int, seconds: int) -> dict[str, Any]:
    with fresh_setup(store) as setup:
        wait_s = rate * LATER_MS // 2000 // SLOW + 15
        start_ms = time.time_ns() // 1_000_000 + 1000 * wait_s
        count, due = fill(setup, rate, start_ms, seconds)
        with node(setup) as running:
            began, used = time.perf_counter(), running.cpu_s()
            while setup.taken() < count:
                time.sleep(0.05)
            filled_s, fill_cpu = time.perf_counter() - began, running.cpu_s() - used
            assert time.time() * 1000 < start_ms, f"{count} messages were not accepted within {wait_s} s"
            filled = {
                "filled": count,
                "filled_per_s": round(count / filled_s),
                "fill_cpu_us_a_job": round(fill_cpu / count * 1e6, 1),
            }
            time.sleep(max(0, start_ms / 1000 - time.time()))
            return filled | steady(setup, running, rate, start_ms, seconds, Sent(count, due))


def steady(setup: Setup, running: Node, rate: int, start_ms: int, seconds: int, before: Sent) -> dict[str, Any]:
    """What happens while this many messages per second come in and go out."""
    used = running.cpu_s()
    words = [setup.servers, setup.source, str(rate), str(start_ms), str(seconds)]
    feeder = subprocess.Popen([sys.executable, "-m", "bench.stream", "--feed", *words], stdout=subprocess.PIPE)
    time.sleep(max(0, start_ms / 1000 + seconds - time.time()))
    accepted, arrived = setup.taken() - before.count, setup.ends(setup.source) - before.count
    cpu = running.cpu_s() - used
    due = before.due + json.loads(feeder.communicate()[0])[1]
    late_ms, written = all_late(setup, start_ms, start_ms + 1000 * seconds, due)
    return {
        "accepted_per_s": round(accepted / seconds),
        "handed_over_per_s": round(written / seconds),
        "behind": arrived - accepted,
        "late_ms": quantiles(late_ms),
        "cpu_us_a_job": round(cpu / max(1, written) * 1e6, 1),
        "peak_mb": running.peak_mb(),
        "raw_consume_per_s": round(raw_consume(setup)),
    }


def urgent(store: str, jobs: int) -> dict[str, Any]:
    with fresh_setup(store) as setup, node(setup):
        writer = Writer(setup.servers, setup.source)
        while not setup.ends(setup.out):  # the first one makes connections
            writer.send(time.time_ns() // 1_000_000)
            writer.flush()
            time.sleep(0.5)
        time.sleep(2)
        from_ms = time.time_ns() // 1_000_000
        for _ in range(jobs):
            writer.send(time.time_ns() // 1_000_000 + URGENT_MS)
            writer.flush()
            time.sleep((URGENT_MS + random.randint(100, 200)) / 1000)
        late_ms, _ = all_late(setup, from_ms, time.time_ns() // 1_000_000, jobs)
        return {"late_ms": quantiles(late_ms)}


def main() -> None:
    if sys.argv[1:2] == ["--feed"]:
        servers, topic, *numbers = sys.argv[2:]
        print(json.dumps(feed(servers, topic, *map(int, numbers))))
        return
    parser = options_of(__doc__, rate=10_000, seconds=60, runs=1, jobs=50)
    parser.add_argument("--urgent", action="store_true")
    options = parser.parse_args()
    store = options.store
    if options.urgent:
        report("a job due in 200 ms through a topic", store, jobs=options.jobs, **urgent(store, options.jobs))
        return
    limits = {
        "raw_produce_per_s": round(raw_produce(admin_url("kafka"))),
        "raw_insert_per_s": round(raw(store, 100_000, keys=True)),
    }
    runs = [sustained(store, options.rate, options.seconds) for _ in range(options.runs)]
    middle = sorted(runs, key=lambda run: run["handed_over_per_s"])[len(runs) // 2]
    asked = {"rate": options.rate, "seconds": options.seconds}
    report("from topic to topic", store, **asked, **limits, **middle, runs=runs)


if __name__ == "__main__":
    main()
