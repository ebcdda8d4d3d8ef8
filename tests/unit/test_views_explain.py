"""Why a job has not fired: every reason, judged from a record and a survey."""

import msgspec
import pytest

from infinite_scheduler.model import Attempt, Job, JobId, JobRecord, Owner, Shard, Status
from infinite_scheduler.store.cluster_state import AppInfo, HeldBack, NodeInfo, Sample, ShardInfo, View
from infinite_scheduler.store.looking import Survey
from infinite_scheduler.views.explain import Explanation, Reason, explain
from infinite_scheduler.views.node import NodeState, node_state, silence_ms

NOW = 1_893_456_000_000  # 2030-01-01
LEASE = 10_000
DUE = NOW - 5000
NODE = NodeInfo(nonce="n1", node_id="scheduler-1", apps=frozenset({"sms"}), started_ms=NOW - 60_000, beat_ms=NOW - 500)


def record(due_ms: int = DUE, status: Status = Status.PENDING, attempt: int = 1, **fields: object) -> JobRecord:
    key = bytes(JobId.make(due_ms, shard=3, priority=1, entropy=bytes(8)))
    job = Job(
        key=key, app="sms", due_ms=due_ms, scheduled_ms=due_ms, payload=b"1", created_ms=NOW - 60_000, attempt=attempt
    )
    return msgspec.structs.replace(JobRecord(job=job, status=status), **fields)


def survey(
    *,
    paused: bool = False,
    nodes: tuple[NodeInfo, ...] = (NODE,),
    owner: str = "n1",
    line_ms: int = NOW + 30_000,
    dead: frozenset[str] = frozenset(),
) -> Survey:
    shard = ShardInfo(shard=Shard("sms", 3), owner=Owner(owner, 7), line_ms=line_ms, low_ms=NOW - 60_000)
    app = AppInfo(name="sms", shards=16, paused=paused, created_ms=0)
    return Survey(view=View(nodes=nodes, shards=(shard,), apps=(app,), dead=dead), counts={})


def judged(job: JobRecord, around: Survey | None = None) -> Explanation:
    return explain(job, around or survey(), now_ms=NOW, lease_ms=LEASE)


FAILED_ONCE = Attempt(attempt=1, started_ms=DUE, finished_ms=DUE + 5, node="scheduler-1", error="OSError: down")
RUNNING = Attempt(attempt=1, started_ms=NOW - 4000, node="scheduler-1")


def test_it_says_where_the_job_is_and_who_owns_it() -> None:
    answer = judged(record(kept_in="sms_scheduled_jobs_20291231"))
    assert (answer.table, answer.shard) == ("sms_scheduled_jobs_20291231", 3)
    assert answer.owner is not None
    assert (answer.owner.node, answer.owner.epoch, answer.owner.state) == ("scheduler-1", 7, NodeState.ALIVE)
    assert (answer.line_ms, answer.low_ms) == (NOW + 30_000, NOW - 60_000)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status.DONE, "handed over"),
        (Status.FAILED, "failed for good at 2029-12-31T23:59:58.000Z, 2s ago, after 1 attempt: boom"),
        (Status.EXPIRED, "expired"),
        (Status.CANCELLED, "cancelled"),
    ],
)
def test_a_settled_job_says_how_and_when(status: Status, words: str) -> None:
    answer = judged(record(status=status, finished_ms=NOW - 2000, error="boom"), survey(paused=True))
    assert answer.reason is Reason.SETTLED
    assert words in answer.why
    assert "2s ago" in answer.why
    assert answer.notes == ()


def test_a_job_that_is_not_due_says_when_it_is() -> None:
    answer = judged(record(NOW + 250_000))
    assert answer.reason is Reason.NOT_DUE
    assert "in 4m 10s" in answer.why
    assert answer.notes == ()


def test_a_job_that_waits_for_its_retry_shows_the_last_error() -> None:
    job = record(attempt=2, attempts=(FAILED_ONCE,))
    moved = msgspec.structs.replace(job, job=msgspec.structs.replace(job.job, due_ms=NOW + 3000))
    answer = judged(moved)
    assert answer.reason is Reason.RETRY
    assert "attempt 1 failed (OSError: down); attempt 2 is in 3s" in answer.why


def test_a_job_in_flight_says_since_when_and_where() -> None:
    answer = judged(record(attempts=(RUNNING,)))
    assert answer.reason is Reason.IN_FLIGHT
    assert "4s ago, on node scheduler-1, as attempt 1" in answer.why
    assert "is not alive" not in answer.why


def test_a_job_that_was_in_flight_on_a_dead_node_is_handed_over_again() -> None:
    answer = judged(record(attempts=(RUNNING,)), survey(dead=frozenset({"n1"})))
    assert answer.reason is Reason.NO_NODE
    assert not _runs(answer)
    assert any("attempt 1 began at 2029-12-31T23:59:56.000Z on node scheduler-1, which has" in n for n in answer.notes)


def _runs(answer: Explanation) -> bool:
    return any("handler runs" in text for text in (answer.why, *answer.notes))


def test_a_job_that_was_in_flight_on_a_node_that_was_started_again_is_handed_over_again() -> None:
    answer = judged(record(attempts=(RUNNING,)), survey(nodes=(row(started_ms=NOW - 2000),)))
    assert answer.reason is Reason.WAITS_FOR_PLACE
    assert not _runs(answer)


def test_a_job_that_was_in_flight_on_a_node_that_lost_its_shard_is_handed_over_again() -> None:
    other = msgspec.structs.replace(NODE, nonce="n2", node_id="scheduler-2")
    answer = judged(record(attempts=(RUNNING,)), survey(nodes=(NODE, other), owner="n2"))
    assert answer.reason is Reason.WAITS_FOR_PLACE
    assert not _runs(answer)


def test_a_job_that_was_moved_since_it_was_in_flight_is_not_due() -> None:
    answer = judged(record(NOW + 5000, attempts=(RUNNING,)))
    assert answer.reason is Reason.NOT_DUE


def test_an_overdue_job_of_a_paused_app_says_how_to_resume_it() -> None:
    answer = judged(record(), survey(paused=True))
    assert answer.reason is Reason.PAUSED
    assert any("apps resume sms" in note for note in answer.notes)


def test_an_overdue_job_without_a_capable_node_says_so() -> None:
    other = msgspec.structs.replace(NODE, apps=frozenset({"mail"}))
    assert judged(record(), survey(nodes=(other,), owner="")).reason is Reason.NO_NODE
    assert judged(record(), survey(nodes=(), owner="")).reason is Reason.NO_NODE


def test_an_overdue_job_of_a_released_shard_waits_for_an_owner() -> None:
    answer = judged(record(), survey(owner=""))
    assert answer.reason is Reason.NO_OWNER
    assert answer.owner is None


@pytest.mark.parametrize(
    ("owner", "dead", "words"),
    [
        (
            msgspec.structs.replace(NODE, nonce="n2", node_id="gone", beat_ms=NOW - 14_000),
            (),
            "gone has been silent for 14s",
        ),
        (msgspec.structs.replace(NODE, nonce="n2", node_id="gone"), ("n2",), "the process of its owner gone has ended"),
        (None, (), "its owner is gone"),
    ],
)
def test_an_overdue_job_of_a_silent_owner_waits_for_another(
    owner: NodeInfo | None, dead: tuple[str, ...], words: str
) -> None:
    nodes = (NODE, owner) if owner else (NODE,)
    around = survey(nodes=nodes, owner="n2", dead=frozenset(dead))
    answer = judged(record(), around)
    assert answer.reason is Reason.OWNER_SILENT
    assert words in answer.why
    assert any(words in note for note in judged(record(NOW + 5000), around).notes)


def test_an_overdue_job_behind_the_line_was_not_loaded() -> None:
    assert judged(record(), survey(line_ms=DUE)).reason is Reason.NOT_LOADED


def test_a_job_that_has_just_become_due_is_on_its_way() -> None:
    assert judged(record(NOW - 999)).reason is Reason.ON_ITS_WAY


def test_an_overdue_job_of_a_living_owner_waits_for_a_place() -> None:
    answer = judged(record(attempt=2, attempts=(FAILED_ONCE,)))
    assert answer.reason is Reason.WAITS_FOR_PLACE
    assert answer.notes == ("attempt 1 failed: OSError: down",)


def test_a_job_that_is_not_due_warns_of_what_will_keep_it() -> None:
    notes = judged(record(NOW + 5000), survey(paused=True, nodes=(), owner="")).notes
    assert ["is paused" in notes[0], "no node runs app sms" in notes[1]] == [True, True]


def test_a_node_is_judged_by_its_signs_of_life() -> None:
    view = survey(dead=frozenset({"n2"})).view
    assert node_state(NODE, view, NOW, LEASE) is NodeState.ALIVE
    assert node_state(msgspec.structs.replace(NODE, draining=True), view, NOW, LEASE) is NodeState.LEAVING
    assert node_state(msgspec.structs.replace(NODE, beat_ms=NOW - LEASE - 1), view, NOW, LEASE) is NodeState.SILENT
    assert node_state(msgspec.structs.replace(NODE, nonce="n2"), view, NOW, LEASE) is NodeState.DEAD
    view = msgspec.structs.replace(view, presumed_dead=frozenset([NODE.nonce]))
    assert node_state(NODE, view, NOW, LEASE) is NodeState.ALIVE
    assert node_state(msgspec.structs.replace(NODE, beat_ms=NOW - LEASE - 1), view, NOW, LEASE) is NodeState.DEAD


def row(**fields: object) -> NodeInfo:
    return msgspec.structs.replace(NODE, **fields)


@pytest.mark.parametrize(
    ("node", "owner", "state"),
    [
        (row(draining=True), "n1", NodeState.LEAVING),
        (row(drain_asked=True), "", NodeState.DRAINING),  # it has not followed yet, and may be about to take something
        (row(drain_asked=True, draining=True), "n1", NodeState.DRAINING),
        (row(drain_asked=True, draining=True), "", NodeState.DRAINED),
        (row(draining=True, clock_off=True), "n1", NodeState.CLOCK_OFF),
        (row(draining=True, clock_off=True, drain_asked=True), "", NodeState.CLOCK_OFF),
        (row(draining=True, drain_asked=True, beat_ms=NOW - 60_000), "", NodeState.SILENT),
    ],
)
def test_a_node_that_holds_back_says_why(node: NodeInfo, owner: str, state: NodeState) -> None:
    assert node_state(node, survey(nodes=(node,), owner=owner).view, NOW, LEASE) is state


def test_the_age_of_a_sign_of_life_is_measured_by_the_stores_clock() -> None:
    node = row(beat_ms=NOW - 30_000, clock_offset_ms=+28_000)  # its clock is behind, and it gave a sign 2 s ago
    clock = Sample(store_ms=NOW, asked_us=0, answered_us=0)
    view = msgspec.structs.replace(survey(nodes=(node,)).view, clock=clock)
    for looker_ms in (NOW, NOW + 60_000):  # whatever the clock of who looks says
        assert node_state(node, view, looker_ms, LEASE) is NodeState.ALIVE
        assert silence_ms(node, view, looker_ms) == 2000
    assert silence_ms(node, survey(nodes=(node,)).view, NOW) == 30_000


@pytest.mark.parametrize(
    ("fields", "why", "note"),
    [
        ({"drain_asked": True, "draining": True}, "drained, as an operator asked", "nodes resume scheduler-1"),
        (
            {"clock_off": True, "draining": True},
            "held back, since its clock differs too much from the store's",
            "chrony",
        ),
    ],
)
def test_a_job_whose_nodes_hold_back_says_so_and_what_to_do(fields: dict[str, bool], why: str, note: str) -> None:
    around = survey(nodes=(row(**fields),), owner="")
    answer = judged(record(), around)
    assert answer.reason is Reason.NO_NODE
    assert f"scheduler-1 is {why}" in answer.why
    assert any(note in text for text in answer.notes)
    assert any(note in text for text in judged(record(NOW + 5000), around).notes)
    other = row(nonce="n2", node_id="scheduler-2")
    assert judged(record(), survey(nodes=(row(**fields), other), owner="n2")).reason is not Reason.NO_NODE


def test_what_runs_on_a_node_that_drains_is_in_flight() -> None:
    around = survey(nodes=(row(drain_asked=True, draining=True),))
    answer = judged(record(attempts=(RUNNING,)), around)
    assert answer.reason is Reason.IN_FLIGHT
    assert "is not alive" not in answer.why


HELD_BACK = msgspec.structs.replace(NODE, held_back={"sms": HeldBack(since_ms=NOW - 90_000, reason="no topic")})


@pytest.mark.parametrize("attempts", [(), (RUNNING,)], ids=["waits", "was handed over for long"])
def test_a_job_whose_owner_holds_its_app_back_says_since_when_and_why(attempts: tuple[Attempt, ...]) -> None:
    answer = judged(record(attempts=attempts), survey(nodes=(HELD_BACK,)))
    assert answer.reason is Reason.HELD_BACK
    assert "but node scheduler-1 holds app sms back since 2029-12-31T23:58:30.000Z, 1m 30s ago: no topic" in answer.why
    assert any("go on by themselves" in note for note in answer.notes)


def test_a_job_that_is_not_due_tells_of_the_app_that_is_held_back() -> None:
    answer = judged(record(NOW + 5000), survey(nodes=(HELD_BACK,)))
    assert answer.reason is Reason.NOT_DUE
    assert any("no topic" in note for note in answer.notes)


def test_what_another_node_holds_back_does_not_matter() -> None:
    other = msgspec.structs.replace(HELD_BACK, nonce="n2", node_id="scheduler-2")
    assert judged(record(), survey(nodes=(NODE, other))).reason is Reason.WAITS_FOR_PLACE
