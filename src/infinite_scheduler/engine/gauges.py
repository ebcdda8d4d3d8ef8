"""What observers read off a running node: how much each app holds, and how far it is behind."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from infinite_scheduler.clock import Clock
from infinite_scheduler.engine.dispatcher import Dispatcher
from infinite_scheduler.engine.lane import Lane
from infinite_scheduler.engine.owned_shard import OwnedShard
from infinite_scheduler.observe.readings import AppReading
from infinite_scheduler.policy.budget import Budget


class Gauges:
    """Reads the apps of a node; those that have nothing to do cost next to nothing."""

    def __init__(
        self, dispatchers: Mapping[str, Dispatcher], lanes: Sequence[Lane], budget: Budget, clock: Clock
    ) -> None:
        self._dispatchers = dispatchers
        self._lanes = lanes
        self._budget = budget
        self._clock = clock

    def apps(self) -> Mapping[str, AppReading]:
        """The apps that hold jobs or have some left to read."""
        now_ms = self._clock.wall_ms()
        return {dispatcher.app: self._read(dispatcher, now_ms) for dispatcher in self._busy()}

    def oldest_overdue_ms(self) -> int:
        """The age of the oldest job that is due and not handed over; 0 if there is none."""
        now_ms = self._clock.wall_ms()
        oldest_ms = (self._oldest_ms(dispatcher, self._shards_of(dispatcher.app)) for dispatcher in self._busy())
        return max(0, now_ms - min(chain.from_iterable(oldest_ms), default=now_ms))

    def _busy(self) -> Iterator[Dispatcher]:
        for app, dispatcher in self._dispatchers.items():
            if self._budget.used(app) or not all(lane.owned_shards.windows[app].quiet for lane in self._lanes):
                yield dispatcher

    def _shards_of(self, app: str) -> Sequence[OwnedShard]:
        return [owned for lane in self._lanes for owned in lane.owned_shards.windows[app].owned_shards.values()]

    def _read(self, dispatcher: Dispatcher, now_ms: int) -> AppReading:
        shards = self._shards_of(dispatcher.app)
        return AppReading(
            held=sum(len(owned.held) for owned in shards),
            held_bytes=self._budget.used(dispatcher.app),
            in_flight=len(dispatcher.flights),
            overdue_ms=max(0, now_ms - min(self._oldest_ms(dispatcher, shards), default=now_ms)),
        )

    @staticmethod
    def _oldest_ms(dispatcher: Dispatcher, shards: Iterable[OwnedShard]) -> Iterator[int]:
        """Moments of which the earliest is that of the oldest job that is not handed over, or an earlier one."""
        waiting_ms = dispatcher.oldest_waiting_ms()
        if waiting_ms is not None:
            yield waiting_ms
        for owned in shards:
            if not owned.scanned:
                yield owned.unread_ms
            yield from (job.due_ms for job in owned.parked)
            yield from (job.due_ms for job in owned.quarantined.values())
