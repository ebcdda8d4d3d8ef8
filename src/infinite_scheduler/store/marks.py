"""The port by which suspects are marked before they are fired, so that the job that ends its process is found."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from infinite_scheduler.model import Job, Owner, Shard

MANY, FEW, ALONE = 1000, 30, 1
"""The windows in which suspects are fired: a job whose process ended while it was in one of these goes into the next.

A size below ALONE marks a job that was alone and ran on: it has outlived ALONE - size watches.
"""


class Marks(ABC):
    """What quarantine asks of a store; fenced as all is that an owner writes."""

    @abstractmethod
    async def mark(self, owners: Mapping[Shard, Owner], jobs: Sequence[Job], size: int) -> frozenset[Shard]:
        """Remember that these jobs are in a window of `size`, instead of another. Returns what shards are lost."""
