"""The port of a store: where jobs wait, durably, until an owner hands them over.

It is the sum of small ports, one per role: `Accepting` (doors), `Looking` (people), `Operating` (operators), `Inbox`
(topic doors), `Ledger` (dashboards), `Ownership` and `Marks` (the owner of a shard). A part that needs a store names
the smallest of them that will do, and asks `abilities` before it tries what not every store can. The rules behind them
are in docs/concepts/line-protocol.md.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from infinite_scheduler.model import Accepted, Change, JobSpec
from infinite_scheduler.store.abilities import Abilities, Ability
from infinite_scheduler.store.accepting import Accepting, Decision, Holder
from infinite_scheduler.store.cluster_state import NodeInfo
from infinite_scheduler.store.inbox import Inbox
from infinite_scheduler.store.ledger import Ledger
from infinite_scheduler.store.looking import Found, Looking, Query
from infinite_scheduler.store.operating import Operating
from infinite_scheduler.store.ownership import Ownership, Poke


class Store(Accepting, Looking, Operating):
    """The durable home of jobs, and all that anybody asks of it.

    What a store may be unable to do is not abstract here: unless an adapter can, it refuses in words.
    """

    @property
    @abstractmethod
    def abilities(self) -> Abilities:
        """What this store can do; known before it is opened."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, and bring the schema up to date under a lock.

        Raises StoreBroken or StoreMismatch with what to change when it cannot be used.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish calls in progress and disconnect; a second call does nothing."""

    def enqueue(self, connection: Any, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        del connection, specs
        raise self.abilities.refusal(Ability.OWN_TRANSACTION)

    async def holders(self, app: str, keys: Collection[str]) -> Mapping[str, Holder]:
        del app, keys
        raise self.abilities.refusal(Ability.IDEMPOTENCY_KEYS)

    async def change(
        self, change: Change, key: bytes, *, due_ms: int | None = None, app: str | None = None, timeout_ms: int
    ) -> Decision:
        del key, due_ms, app, timeout_ms
        raise self.abilities.refusal(Ability(change))

    async def find(self, query: Query) -> Found:
        del query
        raise self.abilities.refusal(Ability.SEARCH)

    def inbox(self) -> Inbox:
        """The part of this store that takes messages read from topics; the store must be open.

        One that only keeps dead letters refuses the rest (`LettersOnly`).
        """
        raise self.abilities.refusal(Ability.DEAD_LETTERS)

    def ledger(self) -> Ledger:
        """The part of this store that keeps the books; the store must be open. What it cannot do, it refuses."""
        return Ledger(self.abilities)

    def ownership(self, node: NodeInfo, poke: Poke) -> Ownership:
        """The owner's side of this store, for one node of this process."""
        del node, poke
        raise self.abilities.refusal(Ability.OWNERSHIP)
