"""The port of a store: where jobs wait, durably, until an owner hands them over.

It is the sum of small ports, one for each who asks: `Accepting` (doors), `Looking` (people), `Operating` (operators),
`Inbox` (topic doors), `Ownership` with `Marks` (the owner of a shard). Whoever needs a store names the smallest of them
that will do. The rules behind them are in docs/concepts/line-protocol.md.
"""

from abc import abstractmethod

from infinite_scheduler.store.accepting import Accepting
from infinite_scheduler.store.cluster import NodeInfo
from infinite_scheduler.store.inbox import Inbox
from infinite_scheduler.store.looking import Looking
from infinite_scheduler.store.operating import Operating
from infinite_scheduler.store.ownership import Ownership, Poke


class Store(Accepting, Looking, Operating):
    """The durable home of jobs, and all that anybody asks of it."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, and bring the schema up to date under a lock.

        Raises StoreBroken or StoreMismatch with what to change when it cannot be used.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish what is under way and disconnect; a second call does nothing."""

    @abstractmethod
    def inbox(self) -> Inbox:
        """The side of this store that takes in what is read from topics; the store must be open."""

    @abstractmethod
    def ownership(self, node: NodeInfo, poke: Poke) -> Ownership:
        """The owner's side of this store, for one node of this process."""
