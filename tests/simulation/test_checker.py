"""The judge finds every kind of broken promise in histories made by hand, and none in good ones."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.simulation.checker import judge
from tests.simulation.history import Event

START = 1_900_000_000_000
DUE = START + 1000
JOB = f"{DUE:012x}" + "8014" + "8" * 16
SHARD = "app/0"


class Tale:
    """A history that is written line by line; it keeps the tables that its commits lead to."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.tables: dict[str, dict[Any, Any]] = {"jobs": {}, "entries": {}, "requests": {}, "shards": {}, "nodes": {}}
        self.commit(0, "a", "shards", SHARD, nonce="", epoch=0, line=START, low=START)
        self.join(0, "a")
        self.own(0, "a")

    def tell(self, at: float, what: str, who: str = "", job: str = "", **facts: Any) -> "Tale":
        self.events.append(Event(START + at, what, who, job, facts))
        return self

    def commit(self, at: float, who: str, table: str, key: Any, /, **row: Any) -> "Tale":
        before = self.tables[table].get(key)
        after = (before or {}) | row if row else None
        self.tables[table][key] = after
        if after is None:
            del self.tables[table][key]
        return self.tell(at, "committed", who, changes=[(table, key, before, after)])

    def join(self, at: float, who: str) -> "Tale":
        return self.tell(at, "joined", who, nonce=f"nonce-{who}").commit(at, who, "nodes", f"nonce-{who}", beat=at)

    def own(self, at: float, who: str) -> "Tale":
        epoch = self.tables["shards"][SHARD]["epoch"] + 1
        return self.commit(at, who, "shards", SHARD, nonce=f"nonce-{who}", epoch=epoch)

    def row(self, at: float, who: str, job: str = JOB, **row: Any) -> "Tale":
        return self.commit(at, who, "jobs", job, **row)

    def accept(self, job: str = JOB, **row: Any) -> "Tale":
        start = {"app": "app", "shard": SHARD, "status": "pending", "attempt": 1, "due": DUE, "key": None}
        return self.row(1, "client", job, **(start | row)).tell(2, "accepted", "client", job, due=DUE)

    def hand_over(self, at: float, who: str = "a", attempt: int = 1, due: int = DUE, skew: float = 0) -> "Tale":
        return self.tell(at, "handed over", who, JOB, attempt=attempt, due=due, wall=START + at + skew)

    def give_back(self, at: float, outcome: str = "done", who: str = "a", attempt: int = 1) -> "Tale":
        return self.tell(at, "returned", who, JOB, attempt=attempt, outcome=outcome)

    def finish(self, at: float = 1010, who: str = "a", attempt: int = 1) -> "Tale":
        return self.give_back(at, who=who, attempt=attempt).row(at + 1, who, status="done")

    def ask(self, at: float, change: str, due: int | None = None, call: int = 1) -> "Tale":
        return self.tell(at, "asked", "client", JOB, call=call, change=change, due=due)

    def answer(self, at: float, decision: str, call: int = 1) -> "Tale":
        return self.tell(at, "answered", "client", JOB, call=call, decision=decision)

    def move(self, at: float, who: str, due: int, **row: Any) -> "Tale":
        """A row and its entry in one commit."""
        self.row(at, who, due=due, **row)
        self.commit(at, who, "entries", (due, JOB), there=True)
        entry = self.events.pop().facts["changes"]
        last = self.events.pop()
        return self.tell(at, "committed", who, changes=last.facts["changes"] + entry)

    def broken(self, **options: Any) -> set[str]:
        tables: Mapping[str, Mapping[Any, Any]] = self.tables
        return {violation.promise for violation in judge(self.events, tables, **options)}


@pytest.fixture
def tale() -> Tale:
    return Tale()


def test_a_good_delivery_breaks_nothing(tale: Tale) -> None:
    assert tale.accept().hand_over(1000).finish().broken(latest_ms=100) == set()


def test_a_count_of_what_waits_that_is_wrong_is_found() -> None:
    day = 1_900_000_000_000 // 86_400_000
    found = judge([], {"jobs": {}, "shards": {}, "waiting": {("app0", day): 1, ("app0", day + 1): 0}})
    assert [violation.promise for violation in found] == ["what waits is counted"]


def test_a_lost_job_is_found(tale: Tale) -> None:
    assert tale.accept().broken() == {"never lost"}


def test_a_deleted_row_is_found(tale: Tale) -> None:
    tale.accept()
    tale.commit(5, "a", "jobs", JOB)
    assert "never lost" in tale.broken()


def test_an_acknowledgement_without_a_commit_is_found(tale: Tale) -> None:
    tale.tell(1, "accepted", "client", JOB, due=DUE)
    assert "durable on acknowledgement" in tale.broken()


def test_an_early_hand_over_is_found_by_the_nodes_own_clock(tale: Tale) -> None:
    assert tale.accept().hand_over(1000, skew=-1).finish().broken() == {"never early"}


def test_a_late_hand_over_is_found_where_a_bound_is_given(tale: Tale) -> None:
    assert tale.accept().hand_over(1500).finish(1600).broken(latest_ms=400) == {"on time"}


def test_a_cancel_is_respected(tale: Tale) -> None:
    tale.accept().ask(10, "cancel").row(11, "a", status="cancelled").answer(12, "granted")
    assert tale.broken() == set()
    assert tale.hand_over(1000).broken() == {"a cancelled job never fires"}


def test_a_cancel_that_was_granted_but_not_done_is_found(tale: Tale) -> None:
    tale.accept().ask(10, "cancel").answer(12, "granted").hand_over(1000).finish()
    assert tale.broken() == {"an acknowledged cancel is respected"}


def test_a_cancel_after_the_hand_over_is_found(tale: Tale) -> None:
    tale.accept().hand_over(1000).ask(1001, "cancel").row(1002, "a", status="cancelled").answer(1003, "granted")
    assert tale.broken() == {"no change of a job that is handed over"}


def test_a_reschedule_is_respected(tale: Tale) -> None:
    tale.accept().ask(10, "reschedule", DUE + 500).move(11, "a", DUE + 500).answer(12, "granted")
    tale.hand_over(1500, due=DUE + 500).finish(1510)
    assert tale.broken() == set()


def test_a_hand_over_at_the_old_moment_is_found(tale: Tale) -> None:
    tale.accept().ask(10, "reschedule", DUE + 500).move(11, "a", DUE + 500).answer(12, "granted")
    tale.hand_over(1000).finish(1010)
    assert tale.broken() == {"an acknowledged reschedule is respected"}


def test_a_reschedule_that_was_granted_but_not_done_is_found(tale: Tale) -> None:
    tale.accept().ask(10, "reschedule", DUE + 500).answer(12, "granted").hand_over(1000).finish()
    assert tale.broken() == {"an acknowledged reschedule is respected"}


def test_too_late_needs_a_reason(tale: Tale) -> None:
    tale.accept().ask(10, "cancel").answer(12, "too late").hand_over(1000).finish()
    assert tale.broken() == {"too late is true"}


def test_too_late_is_true_after_the_hand_over(tale: Tale) -> None:
    tale.accept().hand_over(1000).ask(1001, "cancel").answer(1002, "too late").finish()
    assert tale.broken() == set()


def test_too_late_is_false_if_it_came_true(tale: Tale) -> None:
    tale.accept().ask(990, "cancel").row(999, "a", status="cancelled").answer(1002, "too late")
    assert tale.broken() == {"too late is true"}


def test_unavailable_means_not_decided(tale: Tale) -> None:
    tale.accept().ask(10, "cancel").answer(12, "unavailable").row(13, "a", status="cancelled")
    assert tale.broken() == {"unavailable means not decided"}


def test_a_change_that_nobody_asked_for_is_found(tale: Tale) -> None:
    tale.accept().row(13, "a", status="cancelled")
    assert tale.broken() == {"changes are asked for"}


def test_a_second_hand_over_needs_an_excuse(tale: Tale) -> None:
    tale.accept().hand_over(1000).hand_over(1500).finish(1600)
    assert tale.broken() == {"no second hand-over without an excuse"}


def test_a_kill_excuses_a_second_hand_over(tale: Tale) -> None:
    tale.accept().hand_over(1000).tell(1001, "killed", "a").join(1002, "b").own(1500, "b")
    tale.hand_over(1600, "b").finish(1700, "b")
    assert tale.broken() == set()


def test_nothing_excuses_a_hand_over_of_what_is_settled(tale: Tale) -> None:
    tale.accept().hand_over(1000).finish(1010).tell(1020, "killed", "a").join(1030, "b").own(1500, "b")
    tale.hand_over(1600, "b")
    assert tale.broken() == {"nothing settled fires"}


def test_a_living_node_keeps_its_shards(tale: Tale) -> None:
    tale.accept().join(1, "b").own(500, "b").hand_over(1000, "b").finish(1010, "b")
    assert tale.broken(lease_ms=3000) == {"a living node keeps its shards"}


def test_a_node_that_has_left_keeps_nothing(tale: Tale) -> None:
    tale.accept().tell(400, "left", "a").join(401, "b").own(500, "b").hand_over(1000, "b").finish(1010, "b")
    assert tale.broken(lease_ms=3000) == set()


def test_a_silent_node_loses_its_shards(tale: Tale) -> None:
    tale.accept().join(1, "b").own(3500, "b").hand_over(3600, "b").finish(3700, "b")
    assert tale.broken(lease_ms=3000) == set()


def test_a_node_that_lost_the_shard_fires_nothing(tale: Tale) -> None:
    tale.accept().join(1, "b").own(3500, "b").hand_over(3600, "a").finish(3700, "b")
    assert "only the owner fires" in tale.broken()


def test_a_frozen_process_is_the_documented_exception(tale: Tale) -> None:
    tale.accept().join(1, "b").tell(999, "paused", "a", until=START + 3900).own(3500, "b")
    tale.hand_over(3600, "b").hand_over(3950, "a").finish(4000, "b")
    assert tale.broken() == set()


def test_a_node_that_lost_the_shard_settles_nothing(tale: Tale) -> None:
    tale.accept().hand_over(1000).join(1001, "b").own(3500, "b").finish(3600, "a")
    assert tale.broken() == {"a node that lost a shard settles nothing there"}


def test_a_shard_is_released_when_nothing_is_in_flight(tale: Tale) -> None:
    tale.accept().hand_over(1000).commit(1001, "a", "shards", SHARD, nonce="").join(1002, "b").own(1003, "b")
    tale.hand_over(1100, "b").finish(1200, "b")
    assert tale.broken() == {"a planned move duplicates nothing", "no second hand-over without an excuse"}


def test_done_means_that_a_handler_returned(tale: Tale) -> None:
    tale.accept().hand_over(1000).give_back(1001, "failed").row(1010, "a", status="done")
    assert tale.broken() == {"final states are true"}


def test_a_retry_is_another_attempt(tale: Tale) -> None:
    tale.accept().hand_over(1000).give_back(1001, "retry").move(1002, "a", DUE + 100, attempt=2)
    tale.hand_over(1100, attempt=2, due=DUE + 100).finish(1110, attempt=2)
    assert tale.broken() == set()


def test_an_attempt_is_settled_once(tale: Tale) -> None:
    tale.accept().hand_over(1000).give_back(1001, "retry").move(1002, "a", DUE + 100, attempt=3)
    tale.hand_over(1100, attempt=3, due=DUE + 100).finish(1110, attempt=3)
    assert tale.broken() == {"at most one settle an attempt"}


def test_a_final_state_does_not_change(tale: Tale) -> None:
    tale.accept().hand_over(1000).finish().row(1020, "a", status="failed")
    assert tale.broken() == {"final states are final"}


def test_a_moved_job_without_an_entry_is_found(tale: Tale) -> None:
    tale.accept().hand_over(1000).give_back(1001, "retry").row(1002, "a", due=DUE + 100, attempt=2)
    tale.hand_over(1100, attempt=2, due=DUE + 100).finish(1110, attempt=2)
    assert tale.broken() == {"every pending job can be found"}


def test_low_may_not_pass_a_pending_job(tale: Tale) -> None:
    tale.accept().commit(900, "a", "shards", SHARD, line=DUE + 9, low=DUE + 1).hand_over(1000).finish()
    assert tale.broken() == {"every pending job can be found"}


def test_a_wake_request_keeps_a_job_before_low_findable(tale: Tale) -> None:
    tale.commit(0, "a", "shards", SHARD, line=DUE + 9, low=DUE + 1)
    tale.commit(0, "client", "requests", "r", shard=SHARD, change=None, jobs=[JOB])
    tale.accept().hand_over(1000).finish()
    assert tale.broken() == set()
    tale = Tale().commit(0, "a", "shards", SHARD, line=DUE + 9, low=DUE + 1)
    tale.commit(0, "client", "requests", "r", shard=SHARD, change=None, jobs=[JOB])
    tale.accept().commit(500, "a", "requests", "r").hand_over(1000).finish()
    assert tale.broken() == {"every pending job can be found"}


def test_only_the_owner_moves_the_line(tale: Tale) -> None:
    tale.accept().join(1, "b").commit(5, "b", "shards", SHARD, line=START + 1).hand_over(1000).finish()
    assert tale.broken() == {"only the owner moves line and low"}


def test_the_line_never_moves_back(tale: Tale) -> None:
    tale.accept().commit(5, "a", "shards", SHARD, line=START - 1).hand_over(1000).finish()
    assert tale.broken() == {"the line never moves back"}


def test_an_idempotency_key_makes_one_job(tale: Tale) -> None:
    other = JOB[:-1] + "9"
    tale.accept(key="k").hand_over(1000).finish()
    tale.row(1, "client", other, app="app", shard=SHARD, status="done", attempt=1, due=DUE, key="k")
    assert tale.broken() == {"an idempotency key makes one job"}


def test_what_the_safety_net_finds_is_a_bug(tale: Tale) -> None:
    tale.accept().hand_over(1000).finish().tell(1100, "observed", "a", event="Swept")
    assert tale.broken() == {"nodes work as they should"}
