"""Answers what others request from the owner of a shard: wakes, cancels, reschedules, runs at once.

The rules that are named here are those of docs/concepts/line-protocol.md.
"""

from collections.abc import Collection, Sequence

from infinite_scheduler.clock import Clock
from infinite_scheduler.engine.owned_shards import OwnedShards
from infinite_scheduler.engine.window import ROOM
from infinite_scheduler.model import Job, Shard
from infinite_scheduler.store.ownership import Answers, Ownership, Request, named

IDLE_MS = 1000


class Answerer:
    """Looks for requests to one lane, decides them in the store, then updates memory."""

    def __init__(
        self, ownership: Ownership, owned_shards: OwnedShards, clock: Clock, *, poll_ms: int, at_most: int
    ) -> None:
        self._ownership = ownership
        self._owned_shards = owned_shards
        self._clock = clock
        self._poll_ms = poll_ms
        self._at_most = at_most  # jobs named by the requests of one transaction
        self._poked = False
        self._served: set[Shard] = set()  # shards whose requests filled a page: the others come first
        self._next_poll_ms = 0

    def poke(self) -> None:
        """Note that requests may be waiting."""
        self._poked = True

    def due_in_ms(self) -> int:
        """Time until the next look, unless poked before."""
        return self._next_poll_ms - self._clock.steady_ms() if self._owned_shards.by_shard else IDLE_MS

    async def step(self) -> bool:
        """Look for requests when poked, when a shard is new, or when a look is due.

        Rules: answer_in_lane, requests_are_read_without_cursor, takeover_answers_requests_first.
        """
        sound = [t for t in self._owned_shards.by_shard.values() if t.doubt is None]
        poked = self._poked or any(not t.requests_read for t in sound)
        if not sound or (not poked and self._clock.steady_ms() < self._next_poll_ms):
            return False
        self._poked = False
        self._next_poll_ms = self._clock.steady_ms() + self._poll_ms
        asked = [t for t in sound if t.shard not in self._served] or sound
        try:
            requests = await self._ownership.requests([t.shard for t in asked], poked=poked, limit=self._at_most)
            if requests:
                await self._decide(requests)
        except BaseException:
            self._poked = True
            raise
        if named(requests) >= self._at_most:
            self._served.update(request.shard for request in requests)
            self._poked = True
            return True
        for owned in asked:
            owned.requests_read = True
        if len(asked) < len(sound):
            self._poked = True  # for the shards that were passed over
        self._served.clear()
        return bool(requests) or self._poked

    async def _decide(self, requests: Sequence[Request]) -> None:
        """Take the jobs in question off the wheel, decide in the store, then update memory.

        Rules: off_wheel_before_decision, undecided_job_returns_to_wheel.
        """
        owned_shards = self._owned_shards
        owners = owned_shards.owners_of(request.shard for request in requests)
        requests = [request for request in requests if request.shard in owners]
        handed_over: set[bytes] = set()
        off: dict[bytes, Job] = {}
        for request in requests:
            if request.change is None:
                continue
            owned, (key,) = owned_shards.by_shard[request.shard], request.keys
            if key in owned.handed_over:
                handed_over.add(key)
            elif (job := owned_shards.windows[request.shard.app].take_off(key, owned)) is not None:
                off[key] = job
        answers = await owned_shards.written(owners, self._ownership.answer(owners, requests, handed_over, ROOM))
        self._follow(answers, handed_over, off)

    def _follow(self, answers: Answers, handed_over: Collection[bytes], off: dict[bytes, Job]) -> None:
        owned_shards = self._owned_shards
        owned_shards.lower(answers.low_ms)
        stands: dict[bytes, Job | None] = dict(off)
        for decision in answers.decisions:
            if decision.claimed:
                stands[decision.request.keys[0]] = decision.job
        for key, job in stands.items():
            if job is not None and key not in handed_over:
                owned_shards.put(job)
        for job in answers.woken:
            if job.key not in stands:
                owned_shards.put(job)
        for shard, position in answers.left:
            owned_shards.by_shard[shard].leave_to_scan(position)
        owned_shards.lose(answers.lost)
