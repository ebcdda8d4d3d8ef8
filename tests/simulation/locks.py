"""Shared and exclusive locks of open transactions: who holds, who waits, and who waits in a circle."""

import random
from collections.abc import Hashable, Iterator


class Locker:
    """One who holds locks and waits for at most one more; `granted` is called when the wait is over."""

    def __init__(self) -> None:
        self.held: dict[Hashable, bool] = {}
        self.waits_for: Hashable | None = None

    def granted(self) -> None:
        raise NotImplementedError


class _Lock:
    __slots__ = ("holders", "queue")

    def __init__(self) -> None:
        self.holders: dict[Locker, bool] = {}
        self.queue: list[tuple[Locker, bool]] = []


class Locks:
    """All locks of a server.

    `unfair` is how likely a grant does not keep to the order of the queue: then any waiter that fits may come first.
    """

    def __init__(self, rng: random.Random, unfair: float = 0.0) -> None:
        self._rng = rng
        self._unfair = unfair
        self._locks: dict[Hashable, _Lock] = {}

    def request(self, who: Locker, name: Hashable, *, exclusive: bool) -> bool:
        """Has the lock now; or else waits for it, and hears later."""
        has = who.held.get(name)
        if has or (has is False and not exclusive):
            return True
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = _Lock()
        if _fits(lock, who, exclusive) and (not lock.queue or has is False or self._jumps()):
            lock.holders[who] = who.held[name] = exclusive
            return True
        who.waits_for = name
        if has is False:
            lock.queue.insert(0, (who, exclusive))  # an upgrade waits for the other holders only
        else:
            lock.queue.append((who, exclusive))
        return False

    def release(self, who: Locker, only: Hashable | None = None) -> None:
        """Give up one lock or all, and no longer wait for any."""
        names = list(who.held) if only is None else [only]
        for name in names:
            del who.held[name]
            del self._locks[name].holders[who]
        if only is None and who.waits_for is not None:
            names.append(who.waits_for)
            self._leave_queue(who)
        for name in names:
            self._grant(name)

    def _leave_queue(self, who: Locker) -> None:
        if who.waits_for is not None:
            lock = self._locks[who.waits_for]
            lock.queue = [entry for entry in lock.queue if entry[0] is not who]
            who.waits_for = None

    def _jumps(self) -> bool:
        return self._unfair > 0 and self._rng.random() < self._unfair

    def _grant(self, name: Hashable) -> None:
        lock = self._locks.get(name)
        if lock is None:
            return
        if not lock.queue:
            if not lock.holders:
                del self._locks[name]
            return
        queue = list(lock.queue)
        jumps = self._jumps()
        if jumps:
            self._rng.shuffle(queue)
        for who, exclusive in queue:
            if _fits(lock, who, exclusive):
                lock.queue.remove((who, exclusive))
                lock.holders[who] = who.held[name] = exclusive
                who.waits_for = None
                who.granted()
            elif not jumps:
                break

    def circle(self, who: Locker) -> list[Locker]:
        """Those who wait for each other in a circle with `who`, or nobody."""
        path: list[Locker] = []
        seen: set[int] = set()

        def leads_back(waiter: Locker) -> bool:
            path.append(waiter)
            for blocker in self._blockers(waiter):
                if blocker is who:
                    return True
                if id(blocker) not in seen:
                    seen.add(id(blocker))
                    if leads_back(blocker):
                        return True
            path.pop()
            return False

        return path if leads_back(who) else []

    def _blockers(self, waiter: Locker) -> Iterator[Locker]:
        if waiter.waits_for is None:
            return
        lock = self._locks[waiter.waits_for]
        wants = next(exclusive for who, exclusive in lock.queue if who is waiter)
        for holder, exclusive in lock.holders.items():
            if holder is not waiter and (exclusive or wants):
                yield holder
        for ahead, exclusive in lock.queue:
            if ahead is waiter:
                return
            if exclusive or wants:
                yield ahead


def _fits(lock: _Lock, who: Locker, exclusive: bool) -> bool:
    """Can `who` have the lock beside those who hold it?"""
    if exclusive:
        return not lock.holders or (len(lock.holders) == 1 and who in lock.holders)
    return not any(other for holder, other in lock.holders.items() if holder is not who)
