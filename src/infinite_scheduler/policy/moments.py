"""A sorted set of milliseconds that finds its earliest and its latest moment fast."""

from bisect import bisect_left, insort

# A group holds at most 1,024 values, so that keeping it sorted moves at most 8 KiB. Three levels of groups span 1 s, 17
# min and 12 days; above them is one list, which is short for all realistic moments.
_GROUP_BITS = 10
_LEVELS = 3


class Moments:
    """Distinct moments in order: the first is known, the last is found without searching, gaps cost nothing.

    Values that share their upper bits are in one sorted list, and those upper bits are a value of the level above. Any
    integer is a moment.
    """

    __slots__ = ("_levels", "_seconds", "_top", "first")

    def __init__(self) -> None:
        self.first: int | None = None
        self._levels: list[dict[int, list[int]]] = [{} for _ in range(_LEVELS)]
        self._seconds = self._levels[0]
        self._top: list[int] = []

    @property
    def last(self) -> int | None:
        """The latest moment."""
        return self._find(-1)

    def add(self, ms: int) -> None:
        """Add a moment that is not in the set."""
        if self.first is None or ms < self.first:
            self.first = ms
        value = ms
        for level in self._levels:
            group = value >> _GROUP_BITS
            members = level.get(group)
            if members is not None:
                insort(members, value)
                return
            level[group] = [value]
            value = group
        insort(self._top, value)

    def remove(self, ms: int) -> None:
        """Remove a moment that is in the set."""
        value = ms
        for level in self._levels:
            group = value >> _GROUP_BITS
            members = level[group]
            if len(members) > 1:
                del members[bisect_left(members, value)]
                break
            del level[group]
            value = group
        else:
            del self._top[bisect_left(self._top, value)]
        if ms == self.first:
            self.first = self._find(0)

    def pop_first(self) -> int | None:
        """Remove the earliest moment and return the next one."""
        if self.first is None:
            return None
        members = self._seconds[self.first >> _GROUP_BITS]
        if len(members) > 1:
            del members[0]
            self.first = members[0]
        else:
            self.remove(self.first)
        return self.first

    def _find(self, end: int) -> int | None:
        """The moment at one end: 0 for the first, -1 for the last."""
        if not self._top:
            return None
        value = self._top[end]
        for level in reversed(self._levels):
            value = level[value][end]
        return value
