"""What one lane owns, as far as memory knows, and which of it is in doubt.

The rules that are named here are those of docs/concepts/line-protocol.md.
"""

from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from infinite_scheduler.clock import Clock
from infinite_scheduler.engine.owned_shard import OwnedShard
from infinite_scheduler.engine.store_outage import StoreOutage
from infinite_scheduler.engine.window import Window
from infinite_scheduler.model import Job, Owner, Shard
from infinite_scheduler.observe.events import Observer, ShardsLost, ShardsTaken
from infinite_scheduler.store.ownership import Grant

T = TypeVar("T")


class OwnedShards:
    """The owned shards of one lane, and the windows that read ahead of them."""

    def __init__(
        self, windows: Mapping[str, Window], outage: StoreOutage, clock: Clock, tell: Observer, *, marks: bool
    ) -> None:
        self.by_shard: dict[Shard, OwnedShard] = {}
        self._owners: Mapping[Shard, Owner] | None = None  # of each shard, until one comes or goes
        self.doubted: dict[Shard, OwnedShard] = {}
        self.draining: dict[Shard, OwnedShard] = {}
        self.unanswered: dict[Shard, OwnedShard] = {}  # their requests were not looked at since they were loaded
        self.windows = windows
        self._outage = outage
        self._clock = clock
        self._tell = tell
        self._marks = marks  # without them no job is suspected

    def active(self) -> list[Window]:
        """The windows with something to do besides moving lines and answering requests: of many apps, a few."""
        return [window for window in self.windows.values() if not window.quiet]

    # Shards come and go

    def enter(self, grants: Sequence[Grant]) -> None:
        """Own these shards from now on.

        Rules: unclean_takeover_makes_suspects, takeover_scans_from_low.
        """
        for grant in grants:
            former = self.by_shard.get(grant.shard)
            if former is not None:
                self.leave(former)
            owned = OwnedShard(grant, suspect_until_ms=self._clock.wall_ms() if grant.unclean and self._marks else -1)
            self.by_shard[grant.shard] = owned
            self._owners = None
            self.unanswered[grant.shard] = owned
            self.windows[grant.shard.app].enter(owned)
        if grants:
            unclean = sum(grant.unclean for grant in grants)
            self._tell(ShardsTaken(shards=[grant.shard for grant in grants], unclean=unclean))

    def leave(self, owned: OwnedShard) -> None:
        """Forget everything about a shard that is not owned any more."""
        self.windows[owned.shard.app].leave(owned)
        if self.by_shard.get(owned.shard) is owned:
            del self.by_shard[owned.shard]
            self._owners = None
            for some in (self.doubted, self.draining, self.unanswered):
                some.pop(owned.shard, None)

    def all_sound(self) -> Collection[Shard]:
        """The shards that are not in doubt, as of now: what changes later is not seen in it."""
        every = self.owners().keys()
        return [shard for shard in every if shard not in self.doubted] if self.doubted else every

    def owners(self) -> Mapping[Shard, Owner]:
        """The shards held, each with its owner and epoch; the same mapping until a shard comes or goes."""
        if self._owners is None:
            self._owners = {shard: owned.owner for shard, owned in self.by_shard.items()}
        return self._owners

    def lose(self, shards: Collection[Shard]) -> None:
        """Other nodes own these shards now."""
        dropped = 0
        lost = [self.by_shard[shard] for shard in shards if shard in self.by_shard]
        for owned in lost:
            dropped += len(owned.handed_over)
            self.leave(owned)
        if lost:
            self._tell(ShardsLost(shards=[owned.shard for owned in lost], dropped=dropped))

    # Drains

    def drain(self, shards: Iterable[Shard], until_ms: int | None) -> None:
        """Hand over no more of these shards, so that they can be released."""
        for shard in shards:
            owned = self.by_shard.get(shard)
            if owned is not None:
                self.draining[shard] = owned
                self.windows[shard.app].drain(owned, until_ms)

    def call_off_drain(self, owned: OwnedShard) -> None:
        """Hand over the jobs of a shard again."""
        del self.draining[owned.shard]
        self.windows[owned.shard.app].call_off_drain(owned)

    # Doubt

    def doubt(self, shards: Iterable[Shard], why: str) -> None:
        """Hand over and write nothing of these shards until the store has confirmed what is owned."""
        for shard in shards:
            owned = self.by_shard.get(shard)
            if owned is not None:
                self.doubted[shard] = owned
                self.windows[shard.app].doubt(owned, why)

    def reload(self, grant: Grant) -> None:
        """Begin again with what the store says of a shard."""
        owned = self.doubted.pop(grant.shard)
        self.unanswered[grant.shard] = owned
        self.windows[grant.shard.app].reload(owned, grant)

    def sound(self, shard: Shard) -> bool:
        """Is it owned, without doubt?"""
        owned = self.by_shard.get(shard)
        return owned is not None and owned.doubt is None

    def owners_of(self, shards: Iterable[Shard]) -> dict[Shard, Owner]:
        """The owners and epochs of these shards, except those in doubt."""
        owned_shards = self.by_shard
        return {
            shard: owned.owner
            for shard in shards
            if (owned := owned_shards.get(shard)) is not None and owned.doubt is None
        }

    async def written(self, owners: Collection[Shard], call: Awaitable[T]) -> T:
        """Return the result of a write; if it fails, its effect is unknown, so its shards are in doubt.

        Rules: doubt_reloads, every_shard_is_in_doubt.
        """
        try:
            result = await call
        except BaseException:
            self.doubt(owners, "a write to the store was not answered")
            raise
        self._outage.end()
        return result

    # Requests

    def answered(self, shards: Iterable[Shard]) -> None:
        """Note that the requests of these shards were looked at."""
        for shard in shards:
            if (owned := self.unanswered.get(shard)) is not None:
                owned.requests_read = True
                del self.unanswered[shard]

    # What a write has changed

    def put(self, job: Job) -> None:
        """Hold a job if it is due before the line; after the line, the scan will find it."""
        owned = self.by_shard.get(Shard(job.app, job.shard))
        if owned is not None and job.due_ms < owned.line_ms:
            self.windows[job.app].put(job)

    def leave_to_scan(self, shard: Shard, position: bytes) -> None:
        """Add the job at this position to what is left to scan."""
        self.windows[shard.app].leave_to_scan(self.by_shard[shard], position)

    def lower(self, low_ms: Mapping[Shard, int]) -> None:
        """Set low back, since something unsettled was written before it."""
        for shard, its_ms in low_ms.items():
            self.by_shard[shard].low_ms = its_ms
