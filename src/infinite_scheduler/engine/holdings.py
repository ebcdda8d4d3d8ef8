"""What one lane owns, as far as memory knows, and which of it is in doubt.

The rules that are named here are those of docs/concepts/line-protocol.md.
"""

from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from infinite_scheduler.clock import Clock
from infinite_scheduler.engine.absence import Absence
from infinite_scheduler.engine.tenure import Tenure
from infinite_scheduler.engine.window import Window
from infinite_scheduler.model import Job, Owner, Shard
from infinite_scheduler.observe.events import Observer, ShardsLost, ShardsTaken
from infinite_scheduler.store.ownership import Grant

T = TypeVar("T")


class Holdings:
    """The owned shards of one lane, and the windows that read ahead of them."""

    def __init__(
        self, windows: Mapping[str, Window], absence: Absence, clock: Clock, tell: Observer, *, marks: bool
    ) -> None:
        self.tenures: dict[Shard, Tenure] = {}
        self.windows = windows
        self._absence = absence
        self._clock = clock
        self._tell = tell
        self._marks = marks  # without them nobody can be suspected

    # Shards come and go

    def enter(self, grants: Sequence[Grant]) -> None:
        """Own these shards from now on.

        Rules: unclean_takeover_makes_suspects, takeover_scans_from_low.
        """
        for grant in grants:
            former = self.tenures.get(grant.shard)
            if former is not None:
                self.leave(former)
            tenure = Tenure(grant, careful_ms=self._clock.wall_ms() if grant.unclean and self._marks else -1)
            self.tenures[grant.shard] = tenure
            self.windows[grant.shard.app].enter(tenure)
        if grants:
            unclean = sum(grant.unclean for grant in grants)
            self._tell(ShardsTaken(shards=[grant.shard for grant in grants], unclean=unclean))

    def leave(self, tenure: Tenure) -> None:
        """Forget everything about a shard that is not owned any more."""
        self.windows[tenure.shard.app].leave(tenure)
        if self.tenures.get(tenure.shard) is tenure:
            del self.tenures[tenure.shard]

    def lose(self, shards: Collection[Shard]) -> None:
        """Other nodes own these shards now."""
        dropped = 0
        lost = [self.tenures[shard] for shard in shards if shard in self.tenures]
        for tenure in lost:
            dropped += len(tenure.out)
            self.leave(tenure)
        if lost:
            self._tell(ShardsLost(shards=[t.shard for t in lost], dropped=dropped))

    # Doubt

    def doubt(self, shards: Iterable[Shard], why: str) -> None:
        """Hand over and write nothing of these shards until the store has confirmed what is owned."""
        for shard in shards:
            tenure = self.tenures.get(shard)
            if tenure is not None:
                tenure.doubt = why
                self.windows[shard.app].forget(tenure)

    def sound(self, shard: Shard) -> bool:
        """Is it owned, without doubt?"""
        tenure = self.tenures.get(shard)
        return tenure is not None and tenure.doubt is None

    def owners_of(self, shards: Iterable[Shard]) -> dict[Shard, Owner]:
        """The owners and epochs of these shards, except those in doubt."""
        tenures = self.tenures
        return {shard: t.owner for shard in shards if (t := tenures.get(shard)) is not None and t.doubt is None}

    async def written(self, owners: Collection[Shard], call: Awaitable[T]) -> T:
        """Return the result of a write; if it fails, its effect is unknown, so its shards are in doubt.

        Rules: doubt_reloads, every_shard_is_in_doubt.
        """
        try:
            result = await call
        except BaseException:
            self.doubt(owners, "a write to the store was not answered")
            raise
        self._absence.end()
        return result

    # What a write has changed

    def put(self, job: Job) -> None:
        """Hold a job if it is due before the line; after the line, the scan will find it."""
        tenure = self.tenures.get(Shard(job.app, job.shard))
        if tenure is not None and job.due_ms < tenure.line_ms:
            self.windows[job.app].put(job)

    def lower(self, low_ms: Mapping[Shard, int]) -> None:
        """Set low back, since something unsettled was written before it."""
        for shard, its_ms in low_ms.items():
            self.tenures[shard].low_ms = its_ms
