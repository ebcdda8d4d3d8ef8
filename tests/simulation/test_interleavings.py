"""Every interleaving keeps its promise, and breaks it when one of the rules it needs is taken out of the code."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.statements import Statements
from tests.simulation.interleave import SimStage, Stage, ThreadStage
from tests.simulation.interleavings import INTERLEAVINGS, Interleaving
from tests.simulation.rules import RULES, without
from tests.simulation.scene import Broken, prepare


@pytest.fixture(params=["simulated", "sqlite"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    made = SimStage() if request.param == "simulated" else ThreadStage(lambda: SqliteDatabase(tmp_path / "jobs.db"))
    with contextlib.closing(made) as stage:
        yield stage


@pytest.mark.parametrize("order", INTERLEAVINGS, ids=lambda order: order.name)
def test_the_promise_holds(order: Interleaving, stage: Stage) -> None:
    prepare(stage)
    order.play(stage)


@pytest.mark.parametrize(
    ("rule", "order"),
    [pytest.param(rule, order, id=f"{rule}-{order.name}") for order in INTERLEAVINGS for rule in order.rules],
)
def test_without_the_rule_the_promise_is_broken(rule: str, order: Interleaving) -> None:
    with contextlib.closing(SimStage()) as stage, without(rule):
        prepare(stage)
        with pytest.raises(Broken):
            order.play(stage)


def test_every_rule_that_an_interleaving_names_exists() -> None:
    assert {rule for order in INTERLEAVINGS for rule in order.rules} <= RULES.keys()


# The stage itself


def test_a_transaction_that_stops_is_still_open_while_others_work(stage: Stage) -> None:
    prepare(stage)
    act = stage.begin(lambda tx: tx.read_shards(), stops_before="read_shards")
    assert not act.ended
    assert len(stage.look(lambda tx: tx.read_shards())) == 2
    assert len(act.result()) == 2


def test_a_transaction_that_waits_for_a_lock_goes_on_when_the_other_has_ended(stage: Stage) -> None:
    prepare(stage)

    def locks(tx: Statements) -> int:
        rows = tx.lock_shards([row.shard for row in tx.read_shards()], exclusive=True)
        tx.read_nodes()
        return len(rows)

    first = stage.begin(locks, stops_before="read_nodes")
    second = stage.begin(locks)
    assert not second.ended
    assert first.result() == second.result() == 2


def test_a_statement_that_never_comes_is_said(stage: Stage) -> None:
    with pytest.raises(AssertionError, match="never came to read_nodes"):
        stage.begin(lambda tx: tx.read_apps(), stops_before="read_nodes")


def test_a_stage_can_be_closed_while_a_transaction_stands(stage: Stage) -> None:
    prepare(stage)
    act = stage.begin(lambda tx: tx.read_shards(), stops_before="read_shards")
    assert not act.ended
