"""The in-memory timer that holds every job before the line until it is due."""

from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

from infinite_scheduler.policy.moments import Moments

T = TypeVar("T")


class Wheel(Generic[T]):
    """Items by due millisecond, each under a unique key; nothing is scheduled per item.

    Any moment is allowed, past or far, and the clock that is passed in may jump either way: nothing here remembers it.
    Items of the same millisecond come out in the order in which they were added.
    """

    __slots__ = ("_buckets", "_due", "_moments", "_unfinished")

    def __init__(self) -> None:
        self._due: dict[bytes, int] = {}
        self._buckets: dict[int, dict[bytes, T]] = {}
        self._moments = Moments()
        # Keys still to pop of a millisecond that a limit cut short. A dict whose first entries were deleted is slow to
        # iterate; without this, popping many items of one millisecond in small portions would take quadratic time.
        self._unfinished: dict[int, Iterator[bytes]] = {}

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: object) -> bool:
        return key in self._due

    def add(self, due_ms: int, key: bytes, item: T) -> None:
        """Hold `item` until `due_ms`; a key that is already held raises KeyError and changes nothing."""
        if key in self._due:
            raise KeyError(key)
        self._due[key] = due_ms
        bucket = self._buckets.get(due_ms)
        if bucket is None:
            self._buckets[due_ms] = {key: item}
            self._moments.add(due_ms)
        else:
            bucket[key] = item

    def remove(self, key: bytes) -> T | None:
        """Remove one item before its moment; None if the key is not held."""
        due_ms = self._due.pop(key, None)
        if due_ms is None:
            return None
        bucket = self._buckets[due_ms]
        item = bucket.pop(key)
        if not bucket:
            self._forget(due_ms)
        return item

    def pop_due(self, now_ms: int, limit: int | None = None) -> list[T]:
        """Remove what is due at `now_ms` or before, in due order, at most `limit` items; never a later one."""
        moment = self._moments.first
        room = len(self._due) if limit is None else limit
        items: list[T] = []
        while moment is not None and moment <= now_ms:
            bucket = self._buckets[moment]
            if len(bucket) > room:
                items += self._pop_some(moment, bucket, room)
                break
            room -= len(bucket)
            items += bucket.values()
            for key in bucket:
                del self._due[key]
            del self._buckets[moment]
            if self._unfinished:
                self._unfinished.pop(moment, None)
            moment = self._moments.pop_first()
        return items

    def next_due_ms(self) -> int | None:
        """The earliest moment for which something is held."""
        return self._moments.first

    def latest_due_ms(self) -> int | None:
        """The latest moment for which something is held."""
        return self._moments.last

    def pop_latest(self) -> tuple[int, T] | None:
        """Remove the item with the latest moment, to make room for an earlier one."""
        latest = self._moments.last
        if latest is None:
            return None
        bucket = self._buckets[latest]
        key, item = bucket.popitem()
        del self._due[key]
        if not bucket:
            self._forget(latest)
        return latest, item

    def _pop_some(self, moment: int, bucket: dict[bytes, T], count: int) -> list[T]:
        """Remove the `count` oldest items of a bucket that holds more."""
        items: list[T] = []
        while len(items) < count:
            keys = self._unfinished.get(moment)
            if keys is None:
                keys = self._unfinished[moment] = iter(list(bucket))
            portion = list(islice(keys, count - len(items)))
            if not portion:
                del self._unfinished[moment]
            for key in portion:
                if key in bucket:
                    items.append(bucket.pop(key))
                    del self._due[key]
        return items

    def _forget(self, moment: int) -> None:
        """Drop a millisecond that has no items left."""
        del self._buckets[moment]
        self._moments.remove(moment)
        self._unfinished.pop(moment, None)
