"""What things look like to people: values that every door encodes in the same way."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import msgspec
import pytest

from infinite_scheduler import views
from infinite_scheduler.model import Accepted, Attempt, Job, JobId, JobRecord, Owner, Shard, Status
from infinite_scheduler.store.cluster_state import AppInfo, NodeInfo, ShardInfo, View
from infinite_scheduler.store.inbox import DeadLetter, LetterState, Source
from infinite_scheduler.store.ledger import AuditRecord
from infinite_scheduler.store.looking import Survey
from infinite_scheduler.views.app import AppState, app_views
from infinite_scheduler.views.dead_letter import (
    LetterDetails,
    letter_details,
    letter_view,
    replayed,
    replayed_before,
    still_bad,
)
from infinite_scheduler.views.job import JobDetails, accepted_view, job_details, job_view
from infinite_scheduler.views.node import NodeState, node_views
from infinite_scheduler.views.shard import OwnerView, ShardView, shard_views
from infinite_scheduler.views.times import ms_of

NOW = 1_893_456_000_000  # 2030-01-01
LEASE = 10_000
KEY = bytes(JobId.make(NOW, shard=3, priority=1, entropy=bytes(8)))
JOB = Job(key=KEY, app="sms", due_ms=NOW, scheduled_ms=NOW, payload=b'{"n": 9007199254740993}', created_ms=NOW - 1)
RECORD = JobRecord(job=JOB, status=Status.PENDING)


def node(nonce: str, *apps: str, beat_ms: int = NOW) -> NodeInfo:
    return NodeInfo(
        nonce=nonce, node_id=f"node-{nonce}", apps=frozenset(apps), started_ms=NOW - 60_000, beat_ms=beat_ms
    )


def shard(number: int, nonce: str) -> ShardInfo:
    return ShardInfo(shard=Shard("sms", number), owner=Owner(nonce, 7), line_ms=NOW + 5, low_ms=NOW - 5)


def app(name: str, *, paused: bool = False) -> AppInfo:
    return AppInfo(name=name, shards=4, paused=paused, created_ms=NOW)


SURVEY = Survey(
    view=View(
        nodes=(node("a", "sms"), node("b", "mail", beat_ms=NOW - LEASE - 1)),
        shards=(shard(0, "a"), shard(1, "b"), shard(2, "gone"), shard(3, "")),
        apps=(app("sms"), app("mail"), app("fax", paused=True)),
    ),
    counts={"sms": {"done": 3}},
)
LETTER = DeadLetter(
    id="1" * 32,
    source=Source("readers", "jobs", 3),
    offset=9,
    key=b"\xff",
    value=b"text",
    headers=(("trace", b"abc"), ("binary", b"\xfe"), ("none", None)),
    error="no JSON",
    failed_ms=NOW,
    dlq_topic=None,
    state=LetterState.KEPT,
)


# A job


def test_the_data_of_a_job_is_shown_byte_for_byte() -> None:
    assert bytes(job_view(RECORD).data) == JOB.payload
    assert b'"data":{"n": 9007199254740993}' in msgspec.json.encode(job_view(RECORD))


def test_an_attempt_that_runs_has_no_end() -> None:
    attempts = (
        Attempt(attempt=1, started_ms=NOW, finished_ms=NOW + 5, node="a"),
        Attempt(attempt=2, started_ms=NOW, node="a"),
    )
    details = job_details(msgspec.structs.replace(RECORD, attempts=attempts))
    assert [attempt.finished_at for attempt in details.attempts] == ["2030-01-01T00:00:00.005Z", None]


def test_a_time_line_has_all_that_is_known_in_the_order_of_time() -> None:
    job = msgspec.structs.replace(JOB, created_ms=NOW - 5000, scheduled_ms=NOW, due_ms=NOW + 3000, attempt=2)
    attempts = (
        Attempt(attempt=1, started_ms=NOW, finished_ms=NOW + 1500, node="a", error="boom"),
        Attempt(attempt=2, started_ms=NOW + 3000, node="b"),
    )
    moved = AuditRecord(
        id="0" * 32, at_ms=NOW - 1, who="ops", address="::1", verb="reschedule job", target=job.id, result="done"
    )
    ended = msgspec.structs.replace(
        RECORD, job=job, attempts=attempts, status=Status.FAILED, finished_ms=NOW + 4000, error="bang"
    )
    details = job_details(ended, [moved])
    assert [(ms_of(one.at) - NOW, str(one.step), one.attempt, one.node, one.detail) for one in details.timeline] == [
        (-5000, "accepted", None, None, None),
        (-1, "changed", None, None, "reschedule job by ops: done"),
        (0, "due", None, None, None),
        (0, "attempt_started", 1, "a", None),
        (1500, "attempt_ended", 1, "a", "boom"),
        (3000, "due", 2, None, "moved by a retry or a change"),
        (3000, "attempt_started", 2, "b", None),
        (4000, "finished", None, None, "failed: bang"),
    ]
    assert [(one.who, one.verb) for one in details.audit] == [("ops", "reschedule job")]


def test_an_accepted_job_says_whether_it_was_known() -> None:
    assert msgspec.to_builtins(accepted_view(Accepted(KEY, NOW, repeated=True))) == {
        "id": JOB.id,
        "due_ms": NOW,
        "repeated": True,
    }


# The cluster


def test_a_node_says_how_many_shards_it_owns_and_how_long_it_is_silent() -> None:
    alive, silent = node_views(SURVEY, NOW, LEASE)
    assert (alive.node, alive.state, alive.shards, alive.silent_ms) == ("node-a", NodeState.ALIVE, 1, 0)
    assert (silent.node, silent.state, silent.silent_ms) == ("node-b", NodeState.SILENT, LEASE + 1)


def test_a_shard_says_who_owns_it_and_whether_that_node_lives() -> None:
    owned, silent, unknown, free = shard_views(SURVEY, NOW, LEASE)
    assert owned == ShardView(
        app="sms",
        shard=0,
        owner=OwnerView(node="node-a", nonce="a", epoch=7, state=NodeState.ALIVE),
        line_ms=NOW + 5,
        low_ms=NOW - 5,
    )
    assert silent.owner is not None
    assert silent.owner.state is NodeState.SILENT
    assert unknown.owner == OwnerView(node="unknown", nonce="gone", epoch=7, state=None)
    assert free.owner is None


def test_an_app_runs_where_a_node_that_works_has_it() -> None:
    sms, mail, fax = app_views(SURVEY, NOW, LEASE)
    assert (sms.state, sms.nodes, sms.shards_owned, sms.counts) == (AppState.RUNNING, ("node-a",), 3, {"done": 3})
    assert (mail.state, mail.nodes, mail.counts) == (AppState.NO_NODE, (), {})
    assert fax.state is AppState.PAUSED


# A dead letter


def test_a_message_that_is_no_text_is_in_base64_under_another_name() -> None:
    data = msgspec.to_builtins(letter_details(LETTER))
    assert (data["key_base64"], data["value"]) == ("/w==", "text")
    assert not {"key", "value_base64"} & set(data)
    assert list(data["headers"]) == [
        {"name": "trace", "value": "abc"},
        {"name": "binary", "value_base64": "/g=="},
        {"name": "none", "value": None},
    ]


def test_a_list_of_dead_letters_holds_no_messages() -> None:
    data = msgspec.to_builtins(letter_view(LETTER))
    assert data["size"] == 4
    assert not {"key", "value", "headers"} & set(data)


def test_a_replay_says_what_the_letter_became() -> None:
    known = msgspec.structs.replace(LETTER, state=LetterState.REPLAYED, note="job")
    assert [
        msgspec.to_builtins(view)
        for view in (replayed(LETTER, Accepted(KEY, NOW)), replayed_before(known), still_bad(LETTER, "no JSON"))
    ] == [
        {"letter": LETTER.id, "job": JOB.id, "due_ms": NOW, "repeated": False},
        {"letter": LETTER.id, "job": "job", "due_ms": None, "repeated": True},
        {"letter": LETTER.id, "job": None, "error": "no JSON"},
    ]


# All of them


def structs() -> Iterator[type[msgspec.Struct]]:
    for info in pkgutil.iter_modules(views.__path__):
        module = importlib.import_module(f"{views.__name__}.{info.name}")
        for _, found in inspect.getmembers(module, inspect.isclass):
            if issubclass(found, msgspec.Struct) and found.__module__ == module.__name__:
                yield found


@pytest.mark.parametrize("view", list(structs()))
def test_every_view_is_frozen_and_has_a_schema(view: type[msgspec.Struct]) -> None:
    assert view.__struct_config__.frozen
    assert msgspec.json.schema(view)["$defs"][view.__name__]["type"] == "object"


@pytest.mark.parametrize(("view", "kind"), [(job_details(RECORD), JobDetails), (letter_details(LETTER), LetterDetails)])
def test_what_is_encoded_can_be_read_again(view: msgspec.Struct, kind: type[msgspec.Struct]) -> None:
    assert msgspec.json.encode(msgspec.json.decode(msgspec.json.encode(view), type=kind)) == msgspec.json.encode(view)
