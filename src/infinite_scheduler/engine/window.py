"""What one lane reads ahead for one app: the jobs before the line, as many as fit into memory.

The rules that are named here are those of docs/concepts/line-protocol.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy

from infinite_scheduler.engine.dispatcher import Dispatcher
from infinite_scheduler.engine.owned_shard import OwnedShard
from infinite_scheduler.model import Job, Priority, start_of
from infinite_scheduler.policy.budget import Budget
from infinite_scheduler.policy.priority import TURNS
from infinite_scheduler.store.ownership import Grant, Page, Scan, Step

ROOM = 8 << 20
"""Bytes of payload that are read at a time: little compared to a node's memory, and worth a transaction."""

LEAST_PAGE = 64
"""Reading is not worth a transaction if there is room for fewer jobs than this."""

TYPICAL_BYTES = 1024

SHARES = 8
"""Each lower priority keeps one of this many parts of the memory, however many jobs of higher ones wait."""

NEVER_MS = 1 << 62

OVERDUE_MS = 1000
"""A range that begins further in the past is a backlog. What of it does not fit into half of the memory is read once
per priority, high first."""


class Window:
    """Moves the line of its shards forward, and reads in pages what the line has passed."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        budget: Budget,
        *,
        lookahead_ms: int,
        fetch_interval_ms: int,
        longest_step_ms: int,
        page: int,
    ) -> None:
        self.dispatcher = dispatcher
        self.app = dispatcher.app
        self.owned_shards: dict[int, OwnedShard] = {}
        self._budget = budget
        self._lookahead_ms = lookahead_ms
        self._longest_step_ms = longest_step_ms
        self._least_lead_ms = lookahead_ms - fetch_interval_ms
        self._page = page
        self._shortest_step_ms = min(1000, fetch_interval_ms)
        self._step_ms = longest_step_ms if longest_step_ms > fetch_interval_ms else self._shortest_step_ms
        self._found = 0  # jobs found since the line last moved
        self._typical = TYPICAL_BYTES
        self._backlog = False
        self._by_priority = False  # the backlog is too large to be read for all priorities at once
        self._full = False  # there was no room for what should have been read next
        self._passed = [0] * len(Priority)  # jobs of higher priorities that came in since this one was last read
        self.may_be_empty = True  # what is left to scan has not been found to contain anything, nor what was before it
        self._had_jobs = False  # jobs were read since the line last moved
        self.quiet = False  # there is nothing to do but to answer requests and, at `_line_due_ms`, to move the line
        self._line_due_ms = 0  # 0: something has changed, and it is to be found out

    def enter(self, owned: OwnedShard) -> None:
        """Add a shard that is owned from now on."""
        self._change()
        self.owned_shards[owned.shard.number] = owned
        self.dispatcher.owned_shards[owned.shard.number] = owned

    def leave(self, owned: OwnedShard) -> None:
        """Forget everything about a shard that is not owned any more."""
        self._change()
        self.forget(owned)
        for job in owned.handed_over.values():
            self._budget.give(self.app, job.size)
        owned.handed_over.clear()
        if self.owned_shards.get(owned.shard.number) is owned:
            del self.owned_shards[owned.shard.number]
            del self.dispatcher.owned_shards[owned.shard.number]

    def forget(self, owned: OwnedShard) -> None:
        """Drop what is not handed over; it will be read again."""
        elsewhere = 0
        for job in owned.held.values():
            if self.dispatcher.wheel.remove(job.key) is None:
                elsewhere += 1
            self._budget.give(self.app, job.size)
        owned.held.clear()
        owned.parked.clear()
        owned.quarantined.clear()
        self.dispatcher.dropped(elsewhere)

    # What happens to its shards

    def _change(self) -> None:
        """There may be something to do."""
        self.quiet = False
        self._line_due_ms = 0

    def doubt(self, owned: OwnedShard, why: str) -> None:
        """Hand over and write nothing of a shard until the store has confirmed that it is owned."""
        self._change()
        owned.doubt = why
        self.forget(owned)

    def reload(self, owned: OwnedShard, grant: Grant) -> None:
        """Begin again with what the store says of a shard; what a step in progress has read since the doubt goes."""
        self._change()
        self.forget(owned)
        owned.load(grant)

    def drain(self, owned: OwnedShard, until_ms: int | None) -> None:
        """Hand over no more of a shard, so that it can be released."""
        self._change()
        owned.draining = True
        owned.drain_until_ms = until_ms

    def call_off_drain(self, owned: OwnedShard) -> None:
        """Hand over the jobs of a shard again."""
        self._change()
        owned.draining = False
        self.dispatcher.resume(owned)

    def leave_to_scan(self, owned: OwnedShard, position: bytes) -> None:
        """Add the job at this position to what is left to scan."""
        self._change()
        owned.leave_to_scan(position)

    # Taking jobs in

    def put(self, job: Job) -> bool:
        """Hold a job until it is due, unless it is already held. False: there is no room, and it is left to scan.

        Rules: job_without_room_is_left_to_scan, left_to_scan_at_due_position.
        """
        owned = self._wanted_by(job)
        if owned is None:
            return True
        if not self._budget.take(self.app, job.size) and not self._displace_for(job):
            self.leave_to_scan(owned, job.position)
            return False
        self._found += 1
        owned.held[job.key] = job
        self.dispatcher.receive(job, owned)
        self._pass_over(job.priority, 1)
        return True

    def _put_all(self, jobs: Sequence[Job], priority: Priority | None) -> bool:
        """Hold all of these jobs, if there is room for all of them, with one check of the budget."""
        size = sum(job.size for job in jobs)
        if size > self._budget.free(self.app):
            return False
        kept = count = 0
        for job in jobs:
            owned = self._wanted_by(job)
            if owned is not None:
                kept += job.size
                count += 1
                owned.held[job.key] = job
                self.dispatcher.receive(job, owned)
        if kept:
            self._budget.take(self.app, kept)
        if priority is not None:
            self._pass_over(priority, count)
        return True

    def _pass_over(self, priority: Priority, count: int) -> None:
        """Note that `count` jobs of a priority came in while lower ones may have waited to be read."""
        for lower in range(priority + 1, len(Priority)):
            self._passed[lower] += count

    def _wanted_by(self, job: Job) -> OwnedShard | None:
        """The owned shard of the job, unless it already has the job.

        Rule: held_job_is_not_taken_again.
        """
        owned = self.owned_shards.get(job.shard)
        if owned is None or job.key in owned.held or job.key in owned.handed_over:
            return None
        return owned

    def take_off(self, key: bytes, owned: OwnedShard) -> Job | None:
        """Remove a held job from its wheel or queue, so that it cannot be handed over while its change is decided.

        Returns a copy: if it is put back, entries for the old one that are still in a queue stay stale.

        Rule: off_wheel_before_decision.
        """
        job = owned.held.pop(key, None)
        owned.quarantined.pop(key, None)
        if job is None:
            return None
        if self.dispatcher.wheel.remove(key) is None:
            self.dispatcher.dropped(1)
        self._budget.give(self.app, job.size)
        return copy(job)

    def done_with(self, size: int) -> None:
        """Free the memory of jobs that were handed over and are settled."""
        self._budget.give(self.app, size)

    def _displace_for(self, job: Job) -> bool:
        """Make room by giving back jobs that would be handed over later than this one.

        Rules: earlier_job_displaces_later, handed_over_is_not_displaced, left_to_scan_at_due_position.
        """
        share = self._share()
        while not self._budget.take(self.app, job.size):
            victim = self.dispatcher.last_after(job, share)
            if victim is None:
                return False
            owned = self.dispatcher.owned_shards[victim.shard]
            del owned.held[victim.key]
            owned.quarantined.pop(victim.key, None)
            self._budget.give(self.app, victim.size)
            self.leave_to_scan(owned, victim.position)
        return True

    def _share(self) -> int:
        """How many ready jobs of a lower priority the higher ones must leave in memory."""
        return max(1, min(self._page, self._share_bytes() // self._typical))

    def _share_bytes(self) -> int:
        return (self._budget.free(self.app) + self._budget.used(self.app)) // SHARES

    # Reading pages

    @property
    def behind(self) -> bool:
        """Is there a backlog that is not read yet, although there is room for more of it?"""
        return self._backlog and not self._full

    def next_scan(self, now_ms: int) -> Scan | None:
        """What to read next; None if everything is read, or there is no room."""
        scan = self._next_scan(now_ms)
        self._full = scan is None
        return scan

    def _next_scan(self, now_ms: int) -> Scan | None:
        owned_shards = [
            owned
            for owned in self.owned_shards.values()
            if owned.doubt is None and owned.requests_read and not owned.scanned
        ]
        if not owned_shards:
            self._all_is_read()
            self._rest()
            return None
        if min(min(owned.cursors) for owned in owned_shards) < start_of(max(0, now_ms - OVERDUE_MS)):
            self._backlog = True
            self._by_priority |= self._budget.used(self.app) >= self._budget.free(self.app)
        if not self._by_priority and all(
            owned.cursors[0] == owned.cursors[1] == owned.cursors[2] for owned in owned_shards
        ):
            return self._scan(owned_shards, None)
        left = {
            p: some for p in Priority if (some := [owned for owned in owned_shards if owned.cursors[p] < owned.end])
        }
        first = next(iter(left))
        return self._scan_of_lower(left, now_ms) or self._scan(left[first], first)

    def _all_is_read(self) -> None:
        self._backlog = self._by_priority = False
        self.may_be_empty = not self._had_jobs
        self._passed = [0] * len(Priority)

    def _scan_of_lower(self, left: Mapping[Priority, Sequence[OwnedShard]], now_ms: int) -> Scan | None:
        """A page of a priority whose overdue jobs were passed over for long: its share, even if there is no room."""
        share = self._share()
        for priority in (Priority.LOW, Priority.NORMAL):
            owed = self._passed[priority] // TURNS
            if not owed or 2 * owed < min(share, LEAST_PAGE):
                continue
            overdue = [owned for owned in left.get(priority, ()) if owned.cursors[priority] < start_of(now_ms)]
            if overdue:
                return self._page_of(overdue, priority, min(owed, share), self._share_bytes())
        return None

    def _scan(self, owned_shards: Sequence[OwnedShard], priority: Priority | None) -> Scan | None:
        """The next page, if there is room for one, or if it may contain jobs due before others that are held."""
        free = self._budget.free(self.app)
        if free < min(LEAST_PAGE * self._typical, ROOM) and self._budget.used(self.app):
            latest_ms = self.dispatcher.wheel.latest_due_ms()
            if latest_ms is None or min(owned.cursors[priority or 0] for owned in owned_shards) >= start_of(latest_ms):
                return None
        limit = min(self._page, max(LEAST_PAGE, free // self._typical))
        return self._page_of(owned_shards, priority, limit, max(free, self._share_bytes()))

    def _page_of(self, owned_shards: Sequence[OwnedShard], priority: Priority | None, limit: int, room: int) -> Scan:
        if priority is not None:
            self._passed[priority] = 0
        return Scan(
            app=self.app,
            shards=frozenset(owned.shard.number for owned in owned_shards),
            start=min(owned.cursors[priority or 0] for owned in owned_shards),
            end=min(owned.end for owned in owned_shards),
            priority=priority,
            limit=limit,
            room=max(1, min(room, ROOM)),
        )

    def begin(self, scan: Scan) -> None:
        """Count the range as read; what is added to the ranges left to scan from now on is not lost."""
        self._change()
        for owned in self._of(scan):
            for priority in _priorities(scan):
                owned.cursors[priority] = max(owned.cursors[priority], scan.end)

    def unread(self, scan: Scan, start: bytes) -> None:
        """From here on the range of a scan is still to be read."""
        self._change()
        for owned in self._of(scan):
            for priority in _priorities(scan):
                owned.cursors[priority] = min(owned.cursors[priority], start)

    def scanned(self, scan: Scan, page: Page) -> None:
        """Add the jobs that a scan has found; those that do not fit are left to scan."""
        if page.next is not None:
            self.unread(scan, page.next)
        if not self._put_all(page.jobs, scan.priority):
            for i, job in enumerate(page.jobs):
                if not self.put(job):
                    self._leave_unread(page.jobs[i + 1 :])
                    break
        self._found += len(page.jobs)
        if page.jobs:
            self._had_jobs = True
            size = sum(job.size for job in page.jobs) // len(page.jobs)
            self._typical = max(self._typical // 2, size)

    def _leave_unread(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            owned = self._wanted_by(job)
            if owned is not None:
                self.leave_to_scan(owned, job.position)

    def _of(self, scan: Scan) -> Iterable[OwnedShard]:
        return [owned for number, owned in self.owned_shards.items() if number in scan.shards and owned.doubt is None]

    # Moving the line

    def next_steps(self, now_ms: int) -> list[Step]:
        """The shards whose line should move, with their new low; often none."""
        if now_ms < self._line_due_ms:
            return []
        goal = now_ms + max(self._lookahead_ms, self._least_lead_ms + self._step_ms)
        steps = []
        for owned in self.owned_shards.values():
            if owned.doubt is not None or owned.draining or owned.line_ms - now_ms > self._lead_of(owned):
                continue
            steps.append(
                Step(
                    shard=owned.shard,
                    owner=owned.owner,
                    line_ms=max(goal, owned.line_ms),
                    low_ms=self.low_of(owned, now_ms),
                )
            )
        if not steps:
            self._rest()
        return steps

    def _rest(self) -> None:
        """Note whether there is something to do before the line is due, and when that is."""
        self.quiet = all(owned.quiet for owned in self.owned_shards.values())
        if self.quiet:
            self._all_is_read()
        self._line_due_ms = min((owned.line_ms - self._lead_of(owned) for owned in self._movable()), default=NEVER_MS)

    def _lead_of(self, owned: OwnedShard) -> int:
        """How far before the line its shard's line must move: later if there is still something to read before it."""
        return max(self._lookahead_ms - self._step_ms, self._least_lead_ms) if owned.scanned else self._least_lead_ms

    def _movable(self) -> Iterable[OwnedShard]:
        return (owned for owned in self.owned_shards.values() if owned.doubt is None and not owned.draining)

    def low_of(self, owned: OwnedShard, now_ms: int) -> int:
        return owned.safe_low(now_ms, self.dispatcher.oldest_waiting_ms())

    def stepped(self, steps: Iterable[Step]) -> None:
        """Lines have moved, durably; what they passed is left to scan, from the line that memory knew.

        Rule: scan_starts_at_remembered_line.
        """
        self._change()
        for step in steps:
            owned = self.owned_shards.get(step.shard.number)
            if owned is not None and owned.owner == step.owner:
                owned.line_ms = step.line_ms
                owned.low_ms = step.low_ms
        self._step_ms = self._shortest_step_ms if self._found else min(2 * self._step_ms, self._longest_step_ms)
        self._found = 0
        self._had_jobs = False

    def due_in_ms(self, now_ms: int) -> int:
        """How long the line may stay where it is."""
        if not self._line_due_ms:
            self._rest()
        return max(0, self._line_due_ms - now_ms)


def _priorities(scan: Scan) -> Iterable[Priority]:
    return Priority if scan.priority is None else (scan.priority,)
