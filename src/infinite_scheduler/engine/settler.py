"""Makes the outcomes of deliveries durable, in batches.

The rules that are named here are those of docs/concepts/line-protocol.md.
"""

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.engine.judge import unrecordable
from infinite_scheduler.engine.owned_shard import OwnedShard
from infinite_scheduler.engine.owned_shards import OwnedShards
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.model import Job, Shard, Status
from infinite_scheduler.observe.events import JobsSettled, Observer, ShardsLost
from infinite_scheduler.store.ownership import Ownership, Running, Settlement, SettleResult

AT_ONCE = 500
AT_MOST = 1000
LINGER_MS = 3
"""Outcomes are made durable in batches: of this size, or when the first has waited this long."""

MANY = 24
LONGER_MS = 15
"""If the last batch was this large, the next waits this long: a third of the transactions for the same jobs."""

Ended = tuple[OwnedShard, Settlement]
"""A delivery that has ended, and the owned shard under which it was made."""


class Settler:
    """Records the outcomes of one lane, then updates memory.

    What cannot be recorded yet is kept: everything during a store outage, else the outcomes of shards in doubt.
    """

    def __init__(
        self,
        ownership: Ownership,
        owned_shards: OwnedShards,
        clock: Clock,
        tell: Observer,
        *,
        shown_ms: int,
        wake: Callable[[], None],
    ) -> None:
        self._ownership = ownership
        self._owned_shards = owned_shards
        self._clock = clock
        self._tell = tell
        self._shown_ms = shown_ms
        self._wake = wake  # wakes the lane: there is something to do
        self._outcomes: deque[Ended] = deque()
        self._first_ms = 0  # when the first of them arrived
        self._linger_ms = LINGER_MS
        self._at_most = AT_MOST
        self._shown_next_ms = 0
        self._came_back: dict[Shard, OwnedShard] = {}  # shards with deliveries that are to be shown no more

    def add(self, owned: OwnedShard, settlement: Settlement) -> None:
        """Queue the outcome of a delivery, to be made durable soon."""
        if not self._outcomes:
            self._first_ms = self._clock.steady_ms()
            self._wake()
        elif len(self._outcomes) == AT_ONCE:
            self._wake()
        self._outcomes.append((owned, settlement))

    def show_no_more(self, owned: OwnedShard, job: Job) -> None:
        """Take a delivery that came back without an outcome from those that people see as running."""
        owned.came_back[job.key] = job
        self._came_back[owned.shard] = owned
        self._wake()

    @property
    def kept(self) -> int:
        """How many outcomes are not durable yet."""
        return len(self._outcomes)

    def due_in_ms(self) -> int | None:
        """How long the outcomes may still wait for more; None if there are none."""
        return self._first_ms + self._linger_ms - self._clock.steady_ms() if self._outcomes else None

    async def step(self) -> bool:
        """Make outcomes durable, fenced; jobs to be retried go back onto the wheel.

        Rule: settle_in_lane.
        """
        running, came_back = self._long_running(), self._no_more_shown()
        if not running and not came_back and not self._is_time():
            return False
        batch = self._next_batch()
        self._linger_ms = LONGER_MS if len(batch) >= MANY else LINGER_MS
        owners = self._owned_shards.owners_of(
            [owned.shard for owned, _ in batch]
            + [Shard(job.app, job.shard) for job in [*came_back, *(r.job for r in running)]]
        )
        if not owners:
            return False
        try:
            recorded = await self._owned_shards.written(
                owners, self._ownership.settle(owners, [s for _, s in batch], running, came_back)
            )
        except SchedulerError:
            self._outcomes.extendleft(reversed(batch))
            raise
        except Exception as error:
            self._outcomes.extendleft(reversed(self._narrowed(batch, error)))
            raise
        if not self._outcomes:
            self._at_most = AT_MOST
        self._taken_from_view(came_back)
        self._settled(batch, recorded)
        return True

    def _is_time(self) -> bool:
        if not self._outcomes:
            return False
        return len(self._outcomes) >= AT_ONCE or self._clock.steady_ms() - self._first_ms >= self._linger_ms

    def _long_running(self) -> list[Running]:
        """Show people the deliveries that take long, in batches."""
        if self._clock.steady_ms() < self._shown_next_ms:
            return []
        self._shown_next_ms = self._clock.steady_ms() + self._shown_ms
        since_ms = self._clock.wall_ms() - self._shown_ms
        windows = self._owned_shards.windows.values()
        return [r for window in windows for r in window.dispatcher.long_running(since_ms, self._sound)]

    def _no_more_shown(self) -> list[Job]:
        """The deliveries that came back, as far as their shards are owned without doubt."""
        for owned in list(self._came_back.values()):
            if self._owned_shards.by_shard.get(owned.shard) is not owned:
                del self._came_back[owned.shard]  # its next owner sees to them
        return [job for owned in self._came_back.values() if self._sound(owned) for job in owned.came_back.values()]

    def _sound(self, owned: OwnedShard) -> bool:
        return owned.doubt is None and self._owned_shards.by_shard.get(owned.shard) is owned

    def _taken_from_view(self, jobs: Sequence[Job]) -> None:
        """Note that people do not see these deliveries any more; one of them may have come back a second time since."""
        for job in jobs:
            shard = Shard(job.app, job.shard)
            if (owned := self._came_back.get(shard)) is not None and owned.came_back.get(job.key) is job:
                del owned.came_back[job.key]
                if not owned.came_back:
                    del self._came_back[shard]

    def _next_batch(self) -> list[Ended]:
        """The next outcomes of shards that are owned without doubt; those of lost shards are dropped."""
        batch, kept, dropped = list[Ended](), deque[Ended](), 0
        owned_shards = self._owned_shards.by_shard
        while self._outcomes and len(batch) < self._at_most:
            owned, settlement = self._outcomes.popleft()
            if owned_shards.get(owned.shard) is not owned:
                dropped += 1
            elif owned.doubt is not None:
                kept.append((owned, settlement))
            else:
                batch.append((owned, settlement))
        self._outcomes.extendleft(reversed(kept))
        if dropped:
            self._tell(ShardsLost(shards=(), dropped=dropped))
        return batch

    def _narrowed(self, batch: Sequence[Ended], error: Exception) -> Sequence[Ended]:
        """One of these outcomes cannot be recorded: try them one by one, and fail the job whose outcome is refused."""
        self._at_most = 1
        if len(batch) > 1:
            return batch
        return [(owned, unrecordable(settlement, error)) for owned, settlement in batch]

    def _settled(self, batch: Sequence[Ended], recorded: SettleResult) -> None:
        """Update memory with what the store says of each shard: recorded, lost, or not as this node remembered it.

        Rules: missed_settle_reloads, lost_shard_costs_no_other.
        """
        counts: dict[str, dict[str, int]] = {}
        sizes: dict[str, int] = {}
        again = []
        for owned, s in batch:
            if owned.shard in recorded.lost:
                continue
            app = s.job.app
            if owned.handed_over.pop(s.job.key, None) is not None:
                sizes[app] = sizes.get(app, 0) + s.job.size
            if owned.shard in recorded.missed:
                continue
            what = "retried" if s.status is Status.PENDING else s.status.value
            per_app = counts.setdefault(app, {})
            per_app[what] = per_app.get(what, 0) + 1
            if s.status is Status.PENDING:
                again.append(msgspec.structs.replace(s.job, due_ms=s.due_ms, attempt=s.job.attempt + 1))
        for app, size in sizes.items():
            self._owned_shards.windows[app].done_with(size)
        for job in again:
            self._owned_shards.put(job)
        self._owned_shards.lower(recorded.low_ms)
        for app, per_app in counts.items():
            self._tell(JobsSettled(app=app, counts=per_app))
        self._owned_shards.lose(recorded.lost)
        self._owned_shards.doubt(recorded.missed, "a job was not as this node remembered it")
        if self._outcomes:
            self._first_ms = self._clock.steady_ms()
