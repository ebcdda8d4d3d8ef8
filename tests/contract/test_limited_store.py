"""Stores that declare less keep the promises of what they declare, and refuse the rest in words."""

from pathlib import Path

import pytest

from infinite_scheduler.clock import Clock
from infinite_scheduler.store import open_store
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.base import Store
from infinite_scheduler.testing import StoreContract
from infinite_scheduler.testing.store_contract.accepting import AcceptingContract, DeduplicatingContract
from infinite_scheduler.testing.store_contract.looking import LookingContract
from infinite_scheduler.testing.store_contract.owning import OwningContract
from infinite_scheduler.testing.store_contract.refusing import RefusingContract
from tests.limited_store import BUCKET, REMOTE, LimitedStore


class Limited:
    """A SQLite file behind a store that can do less."""

    without: frozenset[Ability]

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.url = f"sqlite:///{tmp_path / 'jobs.db'}"

    def make_store(self, clock: Clock) -> Store:
        return LimitedStore(self.make_node_store(clock), self.without)

    def make_node_store(self, clock: Clock) -> Store:
        return open_store(self.url, clock, {"inline": True})


class TestBucket(Limited, StoreContract):
    without = BUCKET


class TestRemote(Limited, StoreContract):
    without = REMOTE


class TestWithNothingMore(
    Limited, AcceptingContract, DeduplicatingContract, OwningContract, LookingContract, RefusingContract
):
    without = frozenset(Ability)

    def test_the_contract_is_the_sum_of_its_classes(self) -> None:
        assert {AcceptingContract, DeduplicatingContract, OwningContract, LookingContract, RefusingContract} <= set(
            StoreContract.__mro__
        )
