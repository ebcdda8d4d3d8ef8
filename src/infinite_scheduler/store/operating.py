"""The port by which operators hold the cluster back and let it go on."""

from abc import ABC, abstractmethod


class Operating(ABC):
    """What operators ask of a store; nodes follow at their next look at the cluster."""

    @abstractmethod
    async def pause(self, app: str, *, paused: bool) -> None:
        """Stop or resume handing over the jobs of an app, on every node; jobs are still accepted."""

    @abstractmethod
    async def drain(self, node_id: str, *, draining: bool) -> int:
        """Ask all nodes of this name to give up their shards and take none, or to take shards again.

        They follow at their next look at the cluster. Returns how many nodes have this name.
        """
