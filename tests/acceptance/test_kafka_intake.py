"""What becomes of single messages: bad ones, repeated ones, urgent ones, and those that a group has read before."""

import json
import random
import statistics
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.acceptance.checker import judge_intake
from tests.acceptance.streams import LETTER_PARTITIONS, PARTITIONS, Stream, StreamOn, asked_for, message
from tests.services.topics import Written
from tests.waiting import now_ms, until

pytestmark = [pytest.mark.servers]

# Bad messages

LARGE = 10_000_000
HEADERS = ["original-topic", "original-partition", "original-offset", "error-message", "error-timestamp"]

GOOD = {"appName": "work", "scheduledTime": "2025-11-03T22:00:00", "jobData": {"number": 0}}
BAD: dict[str, bytes | None] = {
    "not JSON": b'{"appName": "work", ',
    "not UTF-8": b'{"appName": "w\xff\xfe"}',
    "empty": b"",
    "null": None,
    "a list": b"[1, 2]",
    "a text": b'"work"',
    "a number": b"42",
    "no app": json.dumps(GOOD | {"appName": None}).encode(),
    "no time": json.dumps(GOOD | {"scheduledTime": None}).encode(),
    "unknown app": json.dumps(GOOD | {"appName": "wrok"}).encode(),
    "unreadable time": json.dumps(GOOD | {"scheduledTime": "soon"}).encode(),
    "time of no calendar": json.dumps(GOOD | {"scheduledTime": "2025-02-30T00:00:00"}).encode(),
    "app of a wrong type": json.dumps(GOOD | {"appName": 5}).encode(),
    "data of a wrong type": json.dumps(GOOD | {"jobData": "text"}).encode(),
    "unknown priority": json.dumps(GOOD | {"priority": "urgent"}).encode(),
    "key of a wrong type": json.dumps(GOOD | {"idempotencyKey": 7}).encode(),
    "a field is missing": json.dumps(GOOD | {"jobData": {}}).encode(),
    "deep": b'{"appName": "work", "scheduledTime": 0, "jobData": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
}


def test_every_bad_message_is_a_dead_letter_once_and_the_partition_moves_on(stream_on: StreamOn) -> None:
    stream = stream_on("sqlite")
    node = stream.node()
    sender, keys = stream.sender(), {}
    for partition in range(PARTITIONS):
        for number, (kind, value) in enumerate(BAD.items()):
            keys[partition, kind] = random.choice([None, b"", b"\x00\xff\xfe binary", b"task-1"])
            sender.send(value, keys[partition, kind], partition)
            sender.send(message(partition * len(BAD) + number, now_ms()), None, partition)
    sender.arrived()
    node.ready()
    stream.through()

    records = stream.messages()
    bad = {(each.partition, each.offset): each for each in records if not each.offset % 2}
    letters = stream.letters(len(bad))
    assert len(bad) == PARTITIONS * len(BAD)
    assert {place: (each.key, each.value) for place, each in bad.items()} == {
        _origin(letter): (letter.key, letter.value) for letter in letters
    }
    for letter in letters:
        _tells_why(letter, stream)
    assert {letter.partition for letter in letters} <= set(range(LETTER_PARTITIONS))
    until(lambda: stream.letter_states() == {"sent": len(bad)}, "all are marked as sent")
    assert len(stream.letters()) == len(bad), "a dead letter was sent twice"
    good = [asked_for(each) for each in records if each.offset % 2]
    assert not judge_intake(stream.intake(good)).faults
    assert stream.statuses() == {"done": len(good)}
    assert node.stop() == 0


def _origin(letter: Written) -> tuple[int, int]:
    told = _texts(letter)
    return int(told["original-partition"]), int(told["original-offset"])


def _tells_why(letter: Written, stream: Stream) -> None:
    assert [name for name, _ in letter.headers] == HEADERS
    told = _texts(letter)
    assert told["original-topic"] == stream.source
    assert told["error-message"].strip()
    assert abs(int(told["error-timestamp"]) - letter.timestamp_ms) < 30_000


def _texts(letter: Written) -> Mapping[str, str]:
    return {name: (value or b"").decode() for name, value in letter.headers}


def test_a_dead_letter_that_its_topic_refuses_stays_in_the_store(stream_on: StreamOn) -> None:
    stream = stream_on("sqlite")
    node = stream.node().ready()
    sender = stream.sender()
    sender.send(message(1, now_ms(), padding="x" * LARGE), None, 0)
    sender.send(message(2, now_ms()), None, 0)
    sender.arrived()
    stream.through()
    until(lambda: stream.letter_states() == {"refused": 1}, "the letter is refused")
    assert [row.number for row in stream.job_rows()] == [2]
    assert not stream.letters()
    assert node.stop() == 0


# Repeated keys


def test_a_repeated_key_makes_one_job_in_a_batch_across_a_restart_and_across_nodes(stream_on: StreamOn) -> None:
    stream = stream_on("mariadb")
    keys = [f"key-{number}" for number in range(50)]
    _send_keys(stream, keys, range(3))
    nodes = [stream.node().ready()]
    stream.through()
    assert _jobs(stream) == Counter(range(50)), "in a batch"

    assert nodes[0].stop() == 0
    _send_keys(stream, keys, [0, 5])
    nodes = [stream.node().ready()]
    stream.through()
    assert _jobs(stream) == Counter(range(50)), "across a restart"

    nodes.append(stream.node().ready())
    stream.shared(nodes)
    _send_keys(stream, [*keys, *(f"new-{number}" for number in range(50))], range(PARTITIONS))
    stream.through()
    assert _jobs(stream) == Counter(range(100)), "across nodes"
    assert len(stream.published()) == 100
    assert not stream.letter_states()
    assert [node.stop() for node in nodes] == [0, 0]


def _send_keys(stream: Stream, keys: list[str], partitions: Any) -> None:
    """One message a key on each of these partitions; all messages of a key are about the same number."""
    sender = stream.sender()
    for number, key in enumerate(keys):
        for partition in partitions:
            sender.send(message(number, now_ms() + 500, idempotencyKey=key), None, partition)
    sender.arrived()


def _jobs(stream: Stream) -> Counter[int]:
    return Counter(row.number for row in stream.job_rows())


# Groups


def test_a_group_reads_a_message_once_unless_its_offsets_are_reset_and_another_group_reads_it_again(
    stream_on: StreamOn,
) -> None:
    stream = stream_on("sqlite")
    _send(stream, 0, 300)
    _run(stream, 300)
    assert _jobs(stream) == Counter(range(300))

    _send(stream, 300, 310)  # what comes later shows that it has read whatever there was to read
    _run(stream, 310)
    assert _jobs(stream) == Counter(range(310)), "the same group"

    first, stream.group = stream.group, f"another-{stream.group}"
    _run(stream, 620)
    assert _jobs(stream) == Counter([*range(310)] * 2), "another group"
    assert stream.places(first) == stream.places() == stream.ends(stream.source)

    stream.group = first
    stream.run("ingest", "offsets", "--reset", f"{stream.source}=earliest", "--yes")
    assert not stream.places()
    _run(stream, 930)
    assert _jobs(stream) == Counter([*range(310)] * 3), "reset offsets"


def test_offsets_that_are_reset_while_a_node_reads_are_noticed(stream_on: StreamOn) -> None:
    stream = stream_on("sqlite")
    node = stream.node().ready()
    _send(stream, 0, 300)
    stream.through()
    stream.run("ingest", "offsets", "--reset", f"{stream.source}=earliest", "--yes")
    until(lambda: stream.statuses()["done"] == 600, "everything again")
    assert stream.places() == stream.ends(stream.source)
    assert _jobs(stream) == Counter([*range(300)] * 2)
    assert node.stop() == 0


def _send(stream: Stream, first: int, behind: int) -> None:
    sender = stream.sender()
    for number in range(first, behind):
        sender.send(message(number, now_ms()))
    sender.arrived()


def _run(stream: Stream, done: int) -> None:
    """Let one node run until so many jobs are done."""
    node = stream.node().ready()
    stream.through()
    until(lambda: stream.statuses()["done"] == done, f"{done} jobs are done")
    assert len(stream.published()) == done
    assert node.stop() == 0


# On time

URGENT_MS = 200
LATE_MS, TOO_LATE_MS = 100, 3000
"""What the median of urgent jobs may be late by, and any of them on a machine that has other work."""


@pytest.mark.parametrize("kind", ["sqlite", "mariadb", "postgres"])
def test_a_job_due_in_200_ms_is_on_time(kind: str, stream_on: StreamOn) -> None:
    stream = stream_on(kind)
    node = stream.some_nodes(1)[0]
    sender = stream.sender()
    for number in range(25):  # the first ones make connections
        due_ms = now_ms() + URGENT_MS
        sender.send(message(number, due_ms))
        sender.arrived()
        until(lambda: now_ms() > due_ms - URGENT_MS // 2 + random.randint(0, 20), "the next one")  # noqa: B023
    stream.through()
    due = {one.number: one.due_ms for one in map(asked_for, stream.messages())}
    late = {(number := _number(each)): each.timestamp_ms - due[number] for each in stream.published()}
    late_ms = sorted(ms for number, ms in late.items() if number >= 5)
    print(f"{kind}: urgent jobs are late by {statistics.median(late_ms):g} ms, the latest by {late_ms[-1]} ms")
    assert len(late) == 25
    assert min(late.values()) >= 0
    assert statistics.median(late_ms) <= LATE_MS
    assert late_ms[-1] <= TOO_LATE_MS
    assert node.stop() == 0


def _number(record: Written) -> int:
    return int(json.loads(record.value or b"")["jobParams"]["number"])


# The SMS retry system

SMS = '[apps.sms_retry]\nhandler = "sms_retry"\ntopic = "{topic}"\n'
MANY, SOON_MS, LATER_MS = 3600, 500, 7_000


def test_3600_sms_with_delays_come_out_once_with_exact_fields(stream_on: StreamOn) -> None:
    stream = stream_on("mariadb")
    stream.apps = SMS
    nodes = stream.some_nodes(2)
    sender, sent = stream.sender(), {}
    for number in range(MANY):
        task = 9007199254740993 + number
        due_ms = now_ms() + random.randint(SOON_MS, LATER_MS)
        flat = number % 2 == 1
        sent[task] = due_ms - due_ms % 1000 + 1000 if flat else due_ms
        data = _sms(task, sent[task], 1 + number % 5)
        sender.send(_flat(data) if flat else _enveloped(data, due_ms), f"task-{task}".encode())
    sender.arrived()
    stream.through()

    published = stream.published()
    assert len(published) == MANY
    late_ms = []
    for record in published:
        said = json.loads(record.value or b"")
        task = said["campaignTaskId"]
        due_ms = sent.pop(task)  # once
        late_ms.append(record.timestamp_ms - due_ms)
        executed_ms = _parsed(said.pop("actualExecutionTime"))
        assert due_ms - 1000 < executed_ms <= record.timestamp_ms
        expected = _sms(task, due_ms, said["retryAttempt"])
        assert said == {
            "campaignTaskId": task,
            "createdOn": expected["createdOn"],
            "scheduledRetryTime": expected["retryTime"],
            "retryAttempt": 1 + (task - 9007199254740993) % 5,
        }
        assert record.key == f"task-{task}".encode()
    print(f"{MANY} SMS: late by {statistics.median(late_ms):g} ms, the latest by {max(late_ms)} ms")
    assert not sent
    assert min(late_ms) >= 0
    assert stream.statuses() == {"done": MANY}
    assert [node.stop() for node in nodes] == [0, 0]


def _sms(task: int, due_ms: int, attempt: int) -> dict[str, Any]:
    return {
        "campaignTaskId": task,
        "createdOn": _written(due_ms - 600_000),
        "retryTime": _written(due_ms),
        "retryAttempt": attempt,
        "failureReason": "Network timeout",
    }


def _flat(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data).encode()


def _enveloped(data: Mapping[str, Any], due_ms: int) -> bytes:
    return json.dumps({"appName": "sms_retry", "scheduledTime": due_ms, "jobData": data}).encode()


def _written(ms: int) -> str:
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _parsed(text: str) -> int:
    return round(datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp() * 1000)
