"""Answers what others request from the owner of a shard: wakes, cancels, reschedules, runs at once.

The rules that are named here are those of docs/concepts/line-protocol.md.
"""

from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet

from infinite_scheduler.clock import Clock
from infinite_scheduler.engine.owned_shards import OwnedShards
from infinite_scheduler.engine.window import ROOM
from infinite_scheduler.model import Job, Shard
from infinite_scheduler.store.ownership import Answers, Ownership, Request, named

EMPTY_LOOKS = 20
"""After this many looks that found nothing, looks are half as frequent: requests seem to be rare."""

HELD_UP_LOOKS = 4
"""Another lane looks if the one whose turn it is has left out this many looks: it may wait for a lock."""

IDLE_MS = 1000


class RequestPoll:
    """When a node looks for requests of which it was not told: one look for all of its lanes."""

    def __init__(self, clock: Clock, poll_ms: int) -> None:
        self._clock = clock
        self._poll_ms = poll_ms
        self._answerers: list[Answerer] = []
        self._next_ms = 0
        self._empty = 0  # looks in a row that found nothing

    def join(self, answerer: "Answerer") -> None:
        """Look for this lane, too."""
        self._answerers.append(answerer)

    def due_in_ms(self, answerer: "Answerer") -> int:
        """Time until this lane should look for all: the first one that owns shards, or another if that is held up."""
        first = next((one for one in self._answerers if one.shards()), answerer)
        patience_ms = 0 if first is answerer else HELD_UP_LOOKS * self._poll_ms
        return self._next_ms + patience_ms - self._clock.steady_ms()

    def begin(self) -> None:
        """Note that a look begins."""
        pace = 2 if self._empty >= EMPTY_LOOKS else 1
        self._next_ms = self._clock.steady_ms() + pace * self._poll_ms

    def found(self, requests: Sequence[Request]) -> None:
        """Note what a look found."""
        self._empty = 0 if requests else self._empty + 1

    def shards_of_others(self, answerer: "Answerer") -> list[Shard]:
        """What the other lanes own."""
        return [shard for other in self._answerers if other is not answerer for shard in other.shards()]

    def pass_on(self, answerer: "Answerer", shards: Collection[Shard]) -> None:
        """Poke the other lanes that these shards belong to."""
        for other in self._answerers:
            if other is not answerer and not other.shards().isdisjoint(shards):
                other.poke()


class Answerer:
    """Looks for requests to one lane, decides them in the store, then updates memory."""

    def __init__(
        self,
        ownership: Ownership,
        owned_shards: OwnedShards,
        poll: RequestPoll,
        *,
        at_most: int,
        wake: Callable[[], None],
    ) -> None:
        self._ownership = ownership
        self._owned_shards = owned_shards
        self._poll = poll
        self._at_most = at_most  # jobs named by the requests of one transaction
        self._wake = wake  # wakes the lane
        self._poked = False
        self._served: set[Shard] = set()  # shards whose requests filled a page: the others come first
        poll.join(self)

    def poke(self) -> None:
        """Note that requests may be waiting."""
        self._poked = True
        self._wake()

    def shards(self) -> AbstractSet[Shard]:
        """The shards of this lane."""
        return self._owned_shards.by_shard.keys()

    def due_in_ms(self) -> int:
        """Time until the next look, unless poked before."""
        return self._poll.due_in_ms(self) if self.shards() else IDLE_MS

    async def step(self) -> bool:
        """Look for requests when poked, when a shard is new, or when a look is due.

        Rules: answer_in_lane, requests_are_read_without_cursor, takeover_answers_requests_first.
        """
        told = self._poked or self._has_new_shards()
        if not told and self._poll.due_in_ms(self) > 0:
            return False
        sound = self._owned_shards.all_sound()
        if not sound:
            return False
        self._poked = False
        try:
            return await (self._look(sound) if told else self._look_for_all(sound))
        except BaseException:
            self._poked = True
            raise

    def _has_new_shards(self) -> bool:
        return any(owned.doubt is None for owned in self._owned_shards.unanswered.values())

    async def _look(self, sound: Collection[Shard]) -> bool:
        """Look for requests to this lane."""
        asked = [shard for shard in sound if shard not in self._served] or sound
        requests = await self._requests(asked, poked=True)
        if requests:
            await self._decide(requests)
        if named(requests) >= self._at_most:
            self._served.update(request.shard for request in requests)
            self._poked = True
            return True
        self._owned_shards.answered(asked)
        if len(asked) < len(sound):
            self._poked = True  # for the shards that were passed over
        self._served.clear()
        return bool(requests) or self._poked

    async def _look_for_all(self, own: Collection[Shard]) -> bool:
        """Look for requests to any lane of this node; the others are told of theirs."""
        self._poll.begin()
        others = self._poll.shards_of_others(self)
        requests = await self._requests([*own, *others] if others else own, poked=False)
        if named(requests) >= self._at_most:  # there may be more, for any lane
            self._served.update(request.shard for request in requests)
            self._poked = True
            self._poll.pass_on(self, others)
        else:
            self._poll.pass_on(self, {request.shard for request in requests})
        mine = self.shards()
        to_this_lane = [request for request in requests if request.shard in mine]
        if to_this_lane:
            await self._decide(to_this_lane)
        return bool(to_this_lane) or self._poked

    async def _requests(self, shards: Collection[Shard], *, poked: bool) -> Sequence[Request]:
        requests = await self._ownership.requests(shards, poked=poked, limit=self._at_most)
        self._poll.found(requests)
        return requests

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
            owned_shards.leave_to_scan(shard, position)
        owned_shards.lose(answers.lost)
