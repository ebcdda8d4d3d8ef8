"""Every interleaving on real servers: each keeps its promise, and breaks it without one of the rules it needs."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.servers.stage import ServerStage, empty
from tests.services.databases import fresh_database
from tests.services.server import Kind
from tests.simulation.interleavings import INTERLEAVINGS, Interleaving
from tests.simulation.rules import without
from tests.simulation.scene import Broken, prepare

pytestmark = pytest.mark.servers

ROW_LOCKS = frozenset(
    {
        ("advance_locks_exclusively", "a_job_whose_insert_commits_after_the_line_has_passed_it_is_not_lost"),
        ("advance_locks_exclusively", "a_cancel_that_commits_after_the_line_has_passed_the_job_holds"),
        ("takeover_locks_exclusively", "a_job_whose_settle_commits_after_a_takeover_is_not_handed_over_again"),
        ("takeover_locks_exclusively", "a_settle_that_lowers_low_takes_no_shard_back_from_its_next_owner"),
        ("takeover_locks_exclusively", "a_cancel_that_is_decided_during_a_takeover_holds"),
        ("takeover_locks_exclusively", "a_cancel_holds_at_a_released_shard_that_is_taken_meanwhile"),
    }
)
"""What MariaDB saves without the rule: its locks are those of the row, so whoever writes the row waits all the same.

Both rules are needed there too, as other orders show: what was read before that wait is out of date.
"""


@pytest.fixture(scope="module", params=["mariadb", "postgres"])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture(scope="module")
def shared_url(kind: Kind) -> Iterator[str]:
    """One database for all scenes, which leave it empty."""
    with fresh_database(kind) as url:
        yield url


@pytest.fixture
def stage(shared_url: str) -> Iterator[ServerStage]:
    with contextlib.closing(ServerStage(shared_url)) as stage:
        prepare(stage)
        stage.make_tables()
        yield stage
    empty(shared_url)


@pytest.mark.parametrize("order", INTERLEAVINGS, ids=lambda order: order.name)
def test_the_promise_holds(order: Interleaving, stage: ServerStage) -> None:
    order.play(stage)


@pytest.mark.parametrize(
    ("rule", "order"),
    [pytest.param(rule, order, id=f"{rule}-{order.name}") for order in INTERLEAVINGS for rule in order.rules],
)
def test_without_the_rule_the_promise_is_broken(rule: str, order: Interleaving, stage: ServerStage) -> None:
    covered = stage.kind == "mariadb" and (rule, order.name) in ROW_LOCKS
    with without(rule), contextlib.nullcontext() if covered else pytest.raises(Broken):
        order.play(stage)


def test_every_rule_is_shown_to_be_needed_on_mariadb_too() -> None:
    shown = {rule for order in INTERLEAVINGS for rule in order.rules if (rule, order.name) not in ROW_LOCKS}
    assert shown == {rule for order in INTERLEAVINGS for rule in order.rules}
