"""The queue of due items: high before normal before low, and no priority starves."""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from infinite_scheduler.model import Priority
from infinite_scheduler.policy.moments import Moments

T = TypeVar("T")

TURNS: Final = 8
"""How many items are taken from higher priorities before a waiting lower one has its turn."""

_LOWEST_FIRST: Final = (Priority.LOW, Priority.NORMAL, Priority.HIGH)

# Consumed slots at the start of a bucket are cut off once there are this many and they are half of it.
_CUT = 1024


class PriorityQueue(Generic[T]):
    """Ready items by priority, then by due time, then in order of arrival.

    While an item of a lower priority waits, at most `TURNS` in a row are taken from higher ones.
    """

    __slots__ = ("_lanes", "_low_passed", "_normal_passed", "_outdated")

    def __init__(self) -> None:
        self._lanes: tuple[_Lane[T], _Lane[T], _Lane[T]] = (_Lane(), _Lane(), _Lane())
        # How many items were taken from higher priorities while this one waited, since its last turn.
        self._normal_passed = 0
        self._low_passed = 0
        self._outdated = 0  # at most this many unwanted items, since they were last dropped

    def __len__(self) -> int:
        high, normal, low = self._lanes
        return high.size + normal.size + low.size

    def push(self, priority: Priority, due_ms: int, item: T) -> None:
        """Add an item."""
        self._lanes[priority].push(due_ms, item)

    def pop(self) -> T:
        """Take the item whose turn it is; IndexError if there is none."""
        high, normal, low = self._lanes
        # Low before normal: if both have their turn, taking from normal would pass low over once too often.
        if low.size and self._low_passed >= TURNS:
            chosen = low
        elif high.size and not (normal.size and self._normal_passed >= TURNS):
            chosen = high
        elif normal.size:
            chosen = normal
        elif low.size:
            chosen = low
        else:
            raise IndexError("pop from an empty queue")
        if chosen is low:
            self._low_passed = 0
        else:
            if low.size:
                self._low_passed += 1
            if chosen is normal:
                self._normal_passed = 0
            elif normal.size:
                self._normal_passed += 1
        return chosen.pop()

    def peek_due_ms(self, priority: Priority | None = None) -> int | None:
        """The earliest due moment that waits, in one priority or in all."""
        if priority is not None:
            return self._lanes[priority].first
        return min((first for lane in self._lanes if (first := lane.first) is not None), default=None)

    def waiting(self, priority: Priority) -> int:
        """How many items of a priority wait."""
        return self._lanes[priority].size

    def drop_last(self, by: Priority, share: int, *, owed: bool = False) -> T | None:
        """Remove and return the item that makes room for one of priority `by`: the last of the priority that gives.

        Lower priorities give what they have beyond `share`, the lowest first. If room is `owed` to priority `by`, a
        higher one gives; otherwise its own does. None if there is nothing to give.
        """
        for priority in _LOWEST_FIRST:
            if priority <= by:
                break
            if self._lanes[priority].size > share:
                return self._drop_last_of(priority)
        if owed and by is Priority.LOW and self._lanes[Priority.NORMAL].size > share:
            return self._drop_last_of(Priority.NORMAL)
        if owed and self._lanes[Priority.HIGH].size:
            return self._drop_last_of(Priority.HIGH)
        return self._drop_last_of(by) if self._lanes[by].size else None

    def _drop_last_of(self, priority: Priority) -> T:
        item = self._lanes[priority].drop_last()
        self._forget_turns()
        return item

    def outdate(self, count: int, wanted: Callable[[T], bool]) -> None:
        """Note that up to `count` more items are unwanted; drop all unwanted items once they may be half of the queue.

        So the cost of a call is proportional to `count`, and a queue without a wanted item is empty.
        """
        self._outdated += count
        if 2 * self._outdated > len(self):
            self.retain(wanted)

    def retain(self, wanted: Callable[[T], bool]) -> None:
        """Drop the items that are not wanted; the others keep their order."""
        for lane in self._lanes:
            lane.retain(wanted)
        self._forget_turns()
        self._outdated = 0

    def _forget_turns(self) -> None:
        """Start the count again for a priority that has no items left."""
        _, normal, low = self._lanes
        if not normal.size:
            self._normal_passed = 0
        if not low.size:
            self._low_passed = 0


class _Lane(Generic[T]):
    """The items of one priority: a run of those that arrived in due order, and an aside of those that did not.

    Most arrive in order, and the run costs next to nothing. An item goes aside if it belongs before the end of the run,
    or before or beside an item that is already aside: so of two items due at the same time, the one in the run is
    older.
    """

    __slots__ = ("_aside", "_run", "size")

    def __init__(self) -> None:
        self.size = 0
        self._run: deque[tuple[int, T]] = deque()
        self._aside: _Aside[T] = _Aside()

    @property
    def first(self) -> int | None:
        """The earliest due moment."""
        aside = self._aside.moments.first
        if not self._run:
            return aside
        run = self._run[0][0]
        return run if aside is None or run <= aside else aside

    def push(self, due_ms: int, item: T) -> None:
        """Add an item."""
        self.size += 1
        run = self._run
        if run and due_ms < run[-1][0]:
            self._aside.push(due_ms, item)
            return
        last = self._aside.moments.last if self._aside.moments.first is not None else None
        if last is None or due_ms > last:
            run.append((due_ms, item))
        else:
            self._aside.push(due_ms, item)

    def pop(self) -> T:
        """Take the item that is due first."""
        self.size -= 1
        run = self._run
        aside = self._aside.moments.first
        if aside is not None and (not run or aside < run[0][0]):
            return self._aside.pop(aside)
        return run.popleft()[1]

    def drop_last(self) -> T:
        """Take the item that is due last."""
        self.size -= 1
        run = self._run
        aside = self._aside.moments.last
        if aside is not None and (not run or aside >= run[-1][0]):
            return self._aside.drop_last(aside)
        return run.pop()[1]

    def retain(self, wanted: Callable[[T], bool]) -> None:
        """Drop the items that are not wanted."""
        self._run = deque(entry for entry in self._run if wanted(entry[1]))
        self.size = len(self._run) + self._aside.retain(wanted)


class _Aside(Generic[T]):
    """Items in any order of arrival, in one list per due millisecond."""

    __slots__ = ("_buckets", "_consumed", "moments")

    def __init__(self) -> None:
        self.moments = Moments()
        self._buckets: dict[int, list[Any]] = {}  # of T; a consumed slot holds None
        self._consumed: dict[int, int] = {}  # how many slots at the start of a bucket are consumed

    def push(self, due_ms: int, item: T) -> None:
        """Add an item after those of the same moment."""
        bucket = self._buckets.get(due_ms)
        if bucket is None:
            self._buckets[due_ms] = [item]
            self.moments.add(due_ms)
        else:
            bucket.append(item)

    def pop(self, moment: int) -> T:
        """Take the first item of a moment."""
        bucket = self._buckets[moment]
        consumed = self._consumed.get(moment, 0)
        item: T = bucket[consumed]
        bucket[consumed] = None
        consumed += 1
        if consumed == len(bucket):
            self._forget(moment)
        elif consumed >= _CUT and consumed * 2 >= len(bucket):
            del bucket[:consumed]
            del self._consumed[moment]
        else:
            self._consumed[moment] = consumed
        return item

    def drop_last(self, moment: int) -> T:
        """Take the last item of a moment."""
        bucket = self._buckets[moment]
        item: T = bucket.pop()
        if len(bucket) == self._consumed.get(moment, 0):
            self._forget(moment)
        return item

    def retain(self, wanted: Callable[[T], bool]) -> int:
        """Drop the items that are not wanted. Returns how many are left."""
        left = 0
        for moment, bucket in list(self._buckets.items()):
            bucket[:] = [item for item in bucket[self._consumed.pop(moment, 0) :] if wanted(item)]
            left += len(bucket)
            if not bucket:
                self._forget(moment)
        return left

    def _forget(self, moment: int) -> None:
        """Drop a moment that has no items left."""
        del self._buckets[moment]
        self._consumed.pop(moment, None)
        self.moments.remove(moment)
