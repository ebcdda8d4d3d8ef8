"""The port by which suspects are marked before they are fired, so that the job that ends its process is found."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from infinite_scheduler.model import Job, Owner, Shard

Lifted = Mapping[int, int]
"""What marks say less from now on: size → size. A job that was not fired must not be charged with its window."""


class Marks(ABC):
    """What quarantine asks of a store; fenced as all is that an owner writes."""

    @abstractmethod
    async def mark(self, owners: Mapping[Shard, Owner], jobs: Sequence[Job], size: int) -> frozenset[Shard]:
        """Record that these jobs are in a window of `size`, instead of another. Returns the lost shards."""
