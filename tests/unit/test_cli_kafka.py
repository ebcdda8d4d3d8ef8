"""Commands about topics and dead letters: what they print, what they change, and how bad input ends."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler.bulk_change import letter_changes
from infinite_scheduler.cli import dlq
from infinite_scheduler.cli.run import run
from infinite_scheduler.client import Client
from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.kafka import admin as admin_module
from infinite_scheduler.model import Accepted, JobSpec
from infinite_scheduler.store.inbox import DeadLetter, LetterState, Move, Source, TopicPosition, new_letter_id
from infinite_scheduler.store.sql.inbox import SqlInbox
from tests.services.topics import write

NOBODY = "127.0.0.1:1"
NINE = "2030-01-31T09:00:00"
CONFIG = """
[store]
url = "sqlite:///{folder}/jobs.db"
[kafka]
bootstrap_servers = "{servers}"
[[ingest]]
topic = "jobs"
dlq_topic = ""
group_id = "readers"
[apps.sms]
handler = "kafka"
topic = "out"
required = ["phoneNumber"]
"""


class Ended:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> str:
        assert "Traceback" not in self.err
        return self.err.splitlines()[-1].removeprefix("error: ")


class CommandRig:
    """A configuration, a store, and commands that work on them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], servers: str) -> None:
        self._capsys = capsys
        self._file = folder / "scheduler.toml"
        self._file.write_text(CONFIG.format(folder=folder, servers=servers))
        assert self("migrate", "--create", "--days", "0").code == 0

    def __call__(self, *arguments: str) -> Ended:
        code = run([*arguments, "--config", str(self._file)])
        told = self._capsys.readouterr()
        return Ended(code, told.out, told.err)

    def configure(self, text: str, other: str) -> None:
        whole = self._file.read_text()
        assert text in whole
        self._file.write_text(whole.replace(text, other))

    def in_store(self, work: Callable[[Client], Any]) -> Any:
        async def do() -> Any:
            async with Client(settings={"store": {"url": f"sqlite:///{self._file.parent}/jobs.db"}}) as client:
                return await work(client)

        return asyncio.run(do())

    def keep(self, *letters: DeadLetter) -> list[str]:
        self.in_store(lambda client: client.inbox.take([], letters, []))
        return [letter.id for letter in letters]

    def state_of(self, letter_id: str) -> LetterState:
        letter: DeadLetter = self.in_store(lambda client: client.inbox.letter(letter_id))
        return letter.state

    def position(self, following: int, partition: int = 0) -> None:
        move = Move(source=Source("readers", "jobs", partition), seen=None, next=following)
        self.in_store(lambda client: client.inbox.reset([move]))

    def positions(self) -> list[tuple[int, int]]:
        found: Sequence[TopicPosition] = self.in_store(lambda client: client.inbox.positions())
        return [(position.source.partition, position.next) for position in found]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded broker never answers what it does not know."""
    monkeypatch.setattr(admin_module, "_OPTIONAL_S", 0.2)
    monkeypatch.delenv("INFINITE_SCHEDULER_CONFIG", raising=False)


@pytest.fixture
def rig(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandRig:
    return CommandRig(tmp_path, capsys, NOBODY)


@pytest.fixture
def rig_with_kafka(tmp_path: Path, capsys: pytest.CaptureFixture[str], mock_kafka: str) -> CommandRig:
    return CommandRig(tmp_path, capsys, mock_kafka)


def letter(value: bytes | None, offset: int = 0, **fields: Any) -> DeadLetter:
    known: dict[str, Any] = {
        "id": new_letter_id(1_000_000 + offset),
        "source": Source("readers", "jobs", 3),
        "key": b"k",
        "headers": (("trace", b"1"), ("none", None)),
        "error": f"error {offset}",
        "failed_ms": 1_000_000 + offset,
        "dlq_topic": None,
        "state": LetterState.KEPT,
    }
    return DeadLetter(offset=offset, value=value, **known | fields)


def request(app: str = "sms", at: str = NINE, **data: Any) -> bytes:
    return json.dumps({"appName": app, "scheduledTime": at, "jobData": data or {"phoneNumber": "1"}}).encode()


# Dead letters: look


def test_dead_letters_are_listed_newest_first_with_filters(rig: CommandRig) -> None:
    one, two, three = rig.keep(
        letter(b"1", 1),
        letter(b"22", 2, source=Source("readers", "other", 0)),
        letter(b"333", 3, state=LetterState.UNSENT, dlq_topic="dead"),
    )

    def ids(*filters: str) -> list[str]:
        return [line["id"] for line in rig("dlq", "list", "--json", *filters).lines]

    assert ids() == [three, two, one]
    assert ids("--oldest") == [one, two, three]
    assert ids("--topic", "other") == [two]
    assert ids("--group", "nobody") == []
    assert ids("--state", "unsent") == [three]
    assert ids("--before", "1970-01-01T00:16:40.002Z") == [one]
    assert ids("--limit", "2") == [three, two]
    assert ids("--limit", "2", "--cursor", two) == [one]
    assert rig("dlq", "list", "--json").lines[0] == {
        "id": three,
        "state": "unsent",
        "topic": "jobs",
        "partition": 3,
        "offset": 3,
        "group": "readers",
        "failed_at": "1970-01-01T00:16:40.003Z",
        "error": "error 3",
        "dlq_topic": "dead",
        "note": None,
        "size": 3,
        "cut_bytes": 0,
    }


def test_a_list_says_that_there_is_more_unless_all_are_asked_for(
    rig: CommandRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq, "PAGE", 2)
    ids = rig.keep(*(letter(b"", number) for number in range(5)))
    few = rig("dlq", "list", "--limit", "3")
    assert ids[2] in few.out
    assert ids[1] not in few.out
    assert f"there are more: --cursor {ids[2]}, or --all" in few.err
    every = rig("dlq", "list", "--all", "--limit", "3")
    assert all(each in every.out for each in ids)
    assert every.err == ""
    assert "no dead letters match" in rig("dlq", "list", "--topic", "none").err


def test_a_dead_letter_is_shown_with_its_message(rig: CommandRig) -> None:
    (text,) = rig.keep(letter(b'{"a":\x1b 1}'))
    shown = rig("dlq", "show", text)
    assert '{"a":\\x1b 1}' in shown.out
    assert "\x1b" not in shown.out
    assert "header trace" in shown.out
    (answer,) = rig("dlq", "show", text, "--json").lines
    assert (answer["key"], answer["value"]) == ("k", '{"a":\x1b 1}')
    assert answer["headers"] == [{"name": "trace", "value": "1"}, {"name": "none", "value": None}]


def test_bytes_that_are_no_text_are_shown_all_the_same(rig: CommandRig) -> None:
    binary, nothing = rig.keep(letter(b"\xff\x00", key=None), letter(None, 1))
    assert "\\xff" in rig("dlq", "show", binary).out
    (answer,) = rig("dlq", "show", binary, "--json").lines
    assert (answer["key"], answer["value_base64"]) == (None, "/wA=")
    assert rig("dlq", "show", nothing, "--json").lines[0]["value"] is None


def test_a_letter_says_what_was_cut_off(rig: CommandRig) -> None:
    cut, whole = rig.keep(letter(b'{"appName": "sm', 1, cut_bytes=5000), letter(request(at=f"{NINE}Z"), 2))
    assert "5,000 bytes, which the store could not take" in rig("dlq", "show", cut).out
    assert "cut off" not in rig("dlq", "show", whole).out
    assert [line["cut_bytes"] for line in rig("dlq", "list", "--json").lines] == [0, 5000]
    ended = rig("dlq", "replay", cut)
    assert ended.code == 2
    assert "read it at offset 1 of partition 3 of topic 'jobs'" in ended.err


# Dead letters: try again


def test_a_letter_becomes_a_job_once(rig: CommandRig) -> None:
    (good,) = rig.keep(letter(request(phoneNumber="1", exact=9007199254740993)))
    (answer,) = rig("dlq", "replay", good, "--json").lines
    assert (answer["letter"], answer["due_ms"], answer["repeated"]) == (good, 1_896_080_400_000, False)
    (job,) = rig("jobs", "show", answer["job"], "--json").lines
    assert job["data"] == {"phoneNumber": "1", "exact": 9007199254740993}
    assert rig.state_of(good) is LetterState.REPLAYED
    again = rig("dlq", "replay", good, "--json")
    assert again.lines == [{"letter": good, "job": answer["job"], "due_ms": None, "repeated": True}]
    assert f"is already job {answer['job']}" in rig("dlq", "replay", good).out
    assert len(rig("jobs", "list", "--json").lines) == 1
    assert answer["job"] in rig("dlq", "show", good).out


def test_a_letter_can_have_another_moment(rig: CommandRig) -> None:
    bad, other = rig.keep(letter(request(at="tomorrow")), letter(request(at="tomorrow"), 1))
    (answer,) = rig("dlq", "replay", bad, "--at", "2031-01-01T00:00:00Z", "--json").lines
    assert answer["due_ms"] == 1_924_992_000_000
    assert "in 1h" in rig("dlq", "replay", other, "--in", "1h").out


def test_a_time_without_a_zone_is_read_in_that_of_its_topic_also_where_it_is_disabled(rig: CommandRig) -> None:
    known, twin, stranger, other = rig.keep(
        letter(request(), 1),
        letter(request(), 2, source=Source("others", "jobs", 0)),
        letter(request(), 3, source=Source("readers", "gone", 0)),
        letter(request(), 4, source=Source("readers", "gone", 0)),
    )
    rig.configure('group_id = "readers"', 'group_id = "readers"\nenabled = false\nzone = "Asia/Dhaka"')
    (answer,) = rig("dlq", "replay", known, "--json").lines
    assert answer["due_ms"] == 1_896_080_400_000 - 6 * 3_600_000
    for unknown in (twin, stranger):
        ended = rig("dlq", "replay", unknown)
        assert ended.code == 2
        assert "give the zone with --zone NAME, or another time with --at or --in" in ended.err
    (answer,) = rig("dlq", "replay", stranger, "--zone", "Europe/Berlin", "--json").lines
    assert answer["due_ms"] == 1_896_080_400_000 - 3_600_000
    assert rig("dlq", "replay", twin, "--in", "1h").code == 0
    assert "zone is 'Mars'" in rig("dlq", "replay", other, "--zone", "Mars").error


def test_what_is_still_bad_says_why_and_stays(rig: CommandRig) -> None:
    bad, good = rig.keep(letter(request(other=1)), letter(request(), 1))
    ended = rig("dlq", "replay", bad, good)
    assert ended.code == 2
    assert f"{bad} is still bad:" in ended.err
    assert "phoneNumber" in ended.err
    assert "replayed: 1; still bad: 1" in ended.out
    assert rig.state_of(bad) is LetterState.KEPT
    (answer,) = rig("dlq", "replay", bad, "--json").lines
    assert answer["job"] is None
    assert "phoneNumber" in answer["error"]


def test_an_app_that_the_store_does_not_know_is_still_unknown(rig: CommandRig) -> None:
    (bad,) = rig.keep(letter(request("smss")))
    ended = rig("dlq", "replay", bad)
    assert ended.code == 2
    assert "unknown app 'smss'; known apps: sms" in ended.err


def test_all_that_match_are_replayed_oldest_first(rig: CommandRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_changes, "MOST_LETTERS", 2)
    ids = rig.keep(*(letter(request(), number) for number in range(5)), letter(b"bad", 9))
    assert rig("dlq", "replay", ids[0]).code == 0
    ended = rig("dlq", "replay", "--all", "--yes", "--json")
    assert ended.code == 2
    assert [line["letter"] for line in ended.lines] == ids[1:]
    assert [line["job"] is None for line in ended.lines] == [False] * 4 + [True]
    assert len(rig("jobs", "list", "--json").lines) == 5


def test_all_are_replayed_only_with_a_yes(rig: CommandRig, monkeypatch: pytest.MonkeyPatch) -> None:
    (good,) = rig.keep(letter(request()))
    ended = rig("dlq", "replay", "--all")
    assert (ended.code, rig.state_of(good)) == (2, LetterState.KEPT)
    assert "add --yes to replay 1 dead letter" in ended.error
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    assert rig("dlq", "replay", "--all").code == 1
    assert rig.state_of(good) is LetterState.KEPT
    monkeypatch.setattr("typer.confirm", lambda *_, **__: True)
    assert rig("dlq", "replay", "--all").code == 0
    assert rig.state_of(good) is LetterState.REPLAYED


# How far


def test_a_replay_says_what_was_done_when_the_store_goes_away(rig: CommandRig, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = rig.keep(*(letter(request(), number) for number in range(3)))
    real, asked = SqlInbox.replay, list[str]()

    async def replay(self: SqlInbox, letter_id: str, spec: JobSpec) -> Accepted:
        asked.append(letter_id)
        if len(asked) == 3:
            raise StoreUnavailable("the store is away")
        return await real(self, letter_id, spec)

    monkeypatch.setattr(SqlInbox, "replay", replay)
    ended = rig("dlq", "replay", "--all", "--yes")
    assert (ended.code, "stopped: replayed: 2; still bad: 0; run the command again" in ended.err) == (5, True)
    assert rig("dlq", "replay", "--all", "--yes").code == 0
    assert asked == [*ids, ids[2]]


# Drop


def test_dropped_letters_are_left_alone_and_can_be_replayed(rig: CommandRig) -> None:
    ids = rig.keep(*(letter(request(), number) for number in range(3)))
    assert "is dropped" in rig("dlq", "drop", ids[0]).out
    assert [line["id"] for line in rig("dlq", "list", "--state", "dropped", "--json").lines] == ids[:1]
    assert [line["letter"] for line in rig("dlq", "replay", "--all", "--yes", "--json").lines] == ids[1:]
    ended = rig("dlq", "drop", *ids)
    assert (ended.code, [rig.state_of(one) for one in ids]) == (4, ["dropped", "replayed", "replayed"])
    assert "dropped: 1; refused: 2" in ended.out
    assert rig("dlq", "replay", "--all", "--state", "dropped", "--yes").code == 0
    assert rig.state_of(ids[0]) is LetterState.REPLAYED


def test_all_that_match_are_dropped_after_a_look_and_a_yes(rig: CommandRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_changes, "MOST_LETTERS", 2)
    others = rig.keep(letter(b"0", 9, source=Source("readers", "others", 0)))
    ids = rig.keep(*(letter(b"bad", number) for number in range(5)))
    shown = rig("dlq", "drop", "--all", "--topic", "jobs", "--preview", "--json").lines[0]
    assert (shown["count"], shown["at_least"], [one["id"] for one in shown["letters"]]) == (2, True, ids[:2])
    ended = rig("dlq", "drop", "--all", "--topic", "jobs")
    assert (ended.code, "add --yes to drop at least 2 dead letters" in ended.error) == (2, True)
    assert {rig.state_of(one) for one in ids} == {LetterState.KEPT}
    ended = rig("dlq", "drop", "--all", "--topic", "jobs", "--yes", "--json")
    assert (ended.code, [line["letter"] for line in ended.lines]) == (0, ids)
    assert {rig.state_of(one) for one in ids} == {LetterState.DROPPED}
    assert rig.state_of(others[0]) is LetterState.KEPT


def test_offsets_are_listed_by_the_store_although_no_broker_answers(rig: CommandRig) -> None:
    assert "nothing has been read" in rig("ingest", "offsets").err
    rig.position(7, 2)
    ended = rig("ingest", "offsets")
    assert ended.code == 0
    assert "is it running there?" in ended.err
    (line,) = rig("ingest", "offsets", "--json").lines
    assert (line["group"], line["topic"], line["partition"], line["position"]) == ("readers", "jobs", 2, 7)
    assert (line["end"], line["lag"]) == (None, None)


def test_a_topic_that_cannot_be_read_is_not_ready(rig: CommandRig) -> None:
    ended = rig("ingest", "status")
    assert ended.code == 1
    assert "not ready" in ended.out
    assert f"Not ready: the connection to Kafka at {NOBODY} failed: is it running there?" in ended.out
    (line,) = rig("ingest", "status", "--json").lines
    assert (line["ready"], line["topic"], line["group"], line["dead_letters"]) == (False, "jobs", "readers", {})


def test_status_and_offsets_have_what_kafka_knows(rig_with_kafka: CommandRig, mock_kafka: str) -> None:
    rig = rig_with_kafka
    write(mock_kafka, "jobs", [b"1"] * 1500, partition=1)
    rig.position(300, 1)
    ended = rig("ingest", "status")
    assert ended.code == 0
    assert "1,200" in ended.out
    (line,) = rig("ingest", "status", "--json").lines
    assert (line["ready"], line["lag"], line["partitions"][1]["end"]) == (True, 1200, 1500)
    assert [line["lag"] for line in rig("ingest", "offsets", "--json").lines] == [0, 1200, 0, 0]


def test_offsets_are_reset_after_a_yes(
    rig_with_kafka: CommandRig, mock_kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_with_kafka
    write(mock_kafka, "jobs", [b"1"] * 5, partition=1)
    rig.position(4, 1)
    reset = ("ingest", "offsets", "--reset", "jobs:1=1")
    ended = rig(*reset)
    assert (ended.code, rig.positions()) == (2, [(1, 4)])
    assert "jobs:1 of group readers: from 4 to 1: 3 messages will be read again" in ended.err
    assert "unless their idempotency key is still remembered" in ended.err
    assert "add --yes" in ended.error
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    assert (rig(*reset).code, rig.positions()) == (1, [(1, 4)])
    monkeypatch.setattr("typer.confirm", lambda *_, **__: True)
    assert (rig(*reset).code, rig.positions()) == (0, [(1, 1)])
    (line,) = rig("ingest", "offsets", "--reset", "jobs:1=latest", "--yes", "--json").lines
    assert (line["from"], line["to"], line["end"]) == (1, 5, 5)
    ended = rig("ingest", "offsets", "--reset", "jobs:1=2", "--reset", "jobs=latest", "--yes")
    assert ended.error == "partition 1 of topic 'jobs' is reset twice: leave one of them out"
    assert rig.positions() == [(1, 5)]
    plan = rig("ingest", "offsets", "--reset", "jobs:0=0", "--reset", "jobs:1=4").err
    assert "jobs:0 of group readers: from nowhere to 0: nothing changes" in plan
    assert "jobs:1 of group readers: from 5 to 4: 1 message will be read again" in plan


@pytest.mark.parametrize("moves", [3, 1000])
def test_a_reset_is_planned_again_while_somebody_reads_on(
    rig_with_kafka: CommandRig, mock_kafka: str, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    rig = rig_with_kafka
    write(mock_kafka, "jobs", [b"1"] * 50, partition=1)
    rig.position(4, 1)
    reset, left = SqlInbox.reset, [moves]

    async def busy(self: SqlInbox, wanted: Sequence[Move]) -> None:
        if left[0]:
            left[0] -= 1
            (position,) = await self.positions()
            await reset(self, [Move(source=position.source, seen=position.next, next=position.next + 1)])
        await reset(self, wanted)

    monkeypatch.setattr(SqlInbox, "reset", busy)
    ended = rig("ingest", "offsets", "--reset", "jobs:1=2", "--yes", "--json")
    monkeypatch.undo()
    if moves == 3:
        (line,) = ended.lines
        assert (line["from"], line["to"], rig.positions()) == (7, 2, [(1, 2)])
    else:
        assert (ended.code, rig.positions()) == (4, [(1, 14)])
        assert "nothing was changed: stop the nodes of the group, or try again" in ended.err


def test_the_group_must_be_clear(rig_with_kafka: CommandRig, mock_kafka: str) -> None:
    rig = rig_with_kafka
    write(mock_kafka, "others", [b"1"] * 5, partition=0)
    ended = rig("ingest", "offsets", "--reset", "others:0=2", "--yes")
    assert (ended.code, ended.error.split("'others', ")[1]) == (2, "no group has read it yet: add --group NAME")
    assert rig("ingest", "offsets", "--reset", "others:0=2", "--yes", "--group", "one").code == 0
    assert rig("ingest", "offsets", "--reset", "others:0=3", "--yes").code == 0  # the one that has read it
    assert rig("ingest", "offsets", "--reset", "others:0=1", "--yes", "--group", "two").code == 0
    ended = rig("ingest", "offsets", "--reset", "others:0=2", "--yes")
    assert "the groups one, two read it: add --group NAME" in ended.error


# Bad input


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["topics", "create"], 2, "say which topics: --preset sms-retry or ingest, or --topic NAME"),
        (["topics", "create", "--preset", "kms"], 2, "unknown preset 'kms'"),
        (["topics", "create", "--topic", "a/b"], 2, "is not a valid topic name"),
        (["topics", "create", "--topic", ""], 2, "is not a valid topic name"),
        (["topics", "create", "--topic", "a", "--topic", "a"], 2, "topic 'a' is named twice"),
        (["topics", "create", "--preset", "ingest", "--topic", "scheduler.jobs.dlq"], 2, "is named twice"),
        (["topics", "create", "--topic", "a", "--partitions", "0"], 2, "--partitions"),
        (["topics", "create", "--topic", "a", "--replication", "x"], 2, "--replication"),
        (["topics", "create", "--topic", "a", "--retention", "soon"], 2, "'soon'"),
        (["topics", "create", "--topic", "a", "--retention", "0s"], 2, "keeps nothing"),
        (["topics", "create", "--topic", "a"], 5, "is it running there?"),
        (["topics", "create", "--topic", "a", "--kafka", " "], 2, "bootstrap_servers"),
        (["topics", "create", "--topic", "a", "--kafka", "no.such.host.invalid:9092"], 5, "unknown host"),
        (["ingest", "status", "--group", "nobody"], 2, "no topic that is read by group 'nobody'"),
        (["ingest", "status", "--topic", "a b"], 2, "topic is 'a b'"),
        (["ingest", "offsets", "--reset", "jobs"], 2, "write TOPIC=WHERE"),
        (["ingest", "offsets", "--reset", "jobs=first"], 2, "'first' is not a position"),
        (
            ["ingest", "offsets", "--reset", "jobs=latest", "--topic", "jobs"],
            2,
            "--topic cannot be combined with --reset",
        ),
        (["ingest", "offsets", "--reset", "jobs=latest", "--yes"], 5, "is it running there?"),
        (["dlq", "list", "--state", "lost"], 2, "use unsent, sent, kept, refused, replayed, dropped"),
        (["dlq", "list", "--before", "soon"], 2, "'soon' is not a time"),
        (["dlq", "list", "--limit", "0"], 2, "--limit"),
        (["dlq", "list", "--cursor", "x"], 2, "cursor 'x'"),
        (["dlq", "show", "x"], 3, "no dead letter x"),
        (["dlq", "show", "0" * 32], 3, "no dead letter 0000"),
        (["dlq", "replay"], 2, "either their ids, or --all"),
        (["dlq", "replay", "x", "--all"], 2, "either their ids, or --all"),
        (["dlq", "replay", "x", "--topic", "jobs", "--before", "now"], 2, "--topic, --before only works with --all"),
        (["dlq", "replay", "x"], 3, "no dead letter x"),
        (["dlq", "replay", "--all", "--yes", "--at", "now", "--in", "5m"], 2, "either --at MOMENT or --in DELAY"),
        (["dlq", "replay", "--all", "--yes", "--in", "soon"], 2, "'soon'"),
        (["dlq", "replay", "--all", "--yes", "--state", "replayed"], 2, "are already jobs"),
        (["dlq", "drop"], 2, "either their ids, or --all"),
        (["dlq", "drop", "x", "--state", "kept", "--preview"], 2, "--state, --preview only works with --all"),
        (["dlq", "drop", "x"], 3, "no dead letter x"),
        (["dlq", "drop", "--all", "--yes", "--state", "lost"], 2, "unknown --state 'lost'"),
        (["dlq", "drop", "--all", "--yes", "--state", "dropped"], 2, "are already dropped"),
        (["dlq", "drop", "--all", "--yes", "--state", "replayed"], 2, "are already jobs"),
    ],
)
def test_bad_input_ends_with_a_clear_line(rig: CommandRig, arguments: list[str], code: int, words: str) -> None:
    ended = rig(*arguments)
    assert words in ended.error
    assert ended.code == code
    assert json.loads(rig(*arguments, "--json").err.splitlines()[-1])["code"] == code


def test_without_a_configured_topic_somebody_must_name_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rig = CommandRig(tmp_path, capsys, NOBODY)
    (tmp_path / "scheduler.toml").write_text(f'[store]\nurl = "sqlite:///{tmp_path}/jobs.db"\n')
    ended = rig("ingest", "status")
    assert (ended.code, "add [[ingest]] with a topic, or choose one with --topic NAME" in ended.error) == (2, True)
    assert rig("ingest", "status", "--topic", "jobs", "--kafka", NOBODY).code == 1


def test_a_topic_that_is_disabled_is_told_as_such(rig: CommandRig) -> None:
    rig.configure('group_id = "readers"', 'group_id = "readers"\nenabled = false')
    ended = rig("ingest", "status")
    assert ended.code == 2
    assert "the configuration disables all its topics: 'jobs'; set enabled = true" in ended.error
    (line,) = rig("ingest", "status", "--topic", "jobs", "--json").lines
    assert line["group"] == "readers"
    assert "enabled = false" in line["notes"][0]


def test_a_kafka_command_without_a_command_explains_itself(rig: CommandRig) -> None:
    for name, command in (("topics", "create"), ("ingest", "offsets"), ("dlq", "replay")):
        assert run([name]) == 0
        assert command in rig._capsys.readouterr().out
