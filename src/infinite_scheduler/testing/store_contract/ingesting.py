"""Promises about what is read from topics."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from infinite_scheduler.errors import InvalidRequest, PositionsMoved, SchedulerError, UnknownApp, UnknownLetter
from infinite_scheduler.model import DAY_MS, Accepted, JobSpec
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.inbox import (
    DeadLetter,
    Inbox,
    LetterQuery,
    Letters,
    LetterState,
    Move,
    Source,
    TopicPosition,
    new_letter_id,
)
from infinite_scheduler.store.looking import Query
from infinite_scheduler.testing.store_contract.contract_bench import (
    ROOM,
    SHARD,
    Bench,
    Promises,
    keys,
    needing,
    refused,
)

SOURCE: Final = Source("door", "jobs", 0)
OTHER: Final = Source("door", "jobs", 1)


def move(seen: int | None, to: int, source: Source = SOURCE, **more: Any) -> Move:
    """A move of a position from where it was seen."""
    return Move(source=source, seen=seen, next=to, **more)


def letter(bench: Bench, offset: int = 0, **fields: Any) -> DeadLetter:
    """A message that failed just now."""
    known: dict[str, Any] = {
        "id": new_letter_id(bench.now),
        "source": SOURCE,
        "key": b"k",
        "value": b"v",
        "headers": (),
        "error": "not JSON",
        "failed_ms": bench.now,
        "dlq_topic": "jobs.dlq",
        "state": LetterState.UNSENT,
    }
    return DeadLetter(offset=offset, **known | fields)


def keyed(bench: Bench, key: str = "k", digest: bytes = b"same", **fields: Any) -> JobSpec:
    """A job with an idempotency key."""
    return bench.spec(60_000, idempotency_key=key, digest=digest, **fields)


async def door_of(bench: Bench) -> Inbox:
    """The inbox of the store that nodes work on: the same, unless the store only speaks for it."""
    return (await bench.node_store()).inbox()


async def jobs_in(store: Store) -> int:
    """How many jobs the store has."""
    return len((await store.find(Query(limit=10_000))).records)


async def pages(inbox: Inbox, query: LetterQuery) -> list[Letters]:
    """All pages of a listing."""
    found = [await inbox.letters(query)]
    while found[-1].cursor is not None:
        found.append(await inbox.letters(msgspec.structs.replace(query, cursor=found[-1].cursor)))
    return found


def offsets(letters: Sequence[DeadLetter]) -> list[int]:
    """The offsets of the messages of these letters."""
    return [one.offset for one in letters]


class IngestingContract(Promises):
    """What the inbox of a store promises."""

    needs = frozenset({Ability.INBOX})

    async def test_jobs_dead_letters_and_places_go_in_together(self, bench: Bench) -> None:
        lost = letter(bench, 2)
        accepted = await bench.store.inbox().take([bench.spec(60_000), bench.spec(1000)], [lost], [move(None, 3)])
        assert [a.due_ms - bench.now for a in accepted] == [60_000, 1000]
        await bench.close()
        after_a_restart = await bench.process()
        inbox = after_a_restart.inbox()
        assert [await after_a_restart.get(a.key) is not None for a in accepted] == [True, True]
        assert await inbox.letter(lost.id) == lost
        assert await inbox.positions() == [TopicPosition(source=SOURCE, next=3, topic_id=None, moved_ms=bench.now)]

    async def test_a_place_moves_only_from_where_it_was_seen(self, bench: Bench) -> None:
        inbox = bench.store.inbox()
        await inbox.take([], [], [move(None, 10)])
        for seen in (None, 9, 11, 0):
            with refused(PositionsMoved, "partition 0", "'jobs'", "'door'"):
                await inbox.take([], [], [move(seen, 20)])
        with refused(PositionsMoved, "partition 1", "at offset 5"):
            await inbox.take([], [], [move(5, 6, OTHER)])
        await inbox.take([], [], [move(10, 20)])
        assert [position.next for position in await inbox.positions()] == [20]

    async def test_when_a_place_has_moved_nothing_goes_in(self, bench: Bench) -> None:
        inbox, elsewhere = bench.store.inbox(), (await bench.process()).inbox()
        await elsewhere.take([keyed(bench, "first")], [], [move(None, 5)])
        moved_ms = bench.now
        bench.clock.advance(1000)
        with refused(PositionsMoved):
            await inbox.take([keyed(bench)], [letter(bench)], [move(None, 5, OTHER), move(None, 5)])
        assert await jobs_in(bench.store) == 1
        assert (await inbox.letters(LetterQuery(room=ROOM))).letters == []
        assert await inbox.live_keys() == 1
        assert await inbox.positions() == [TopicPosition(source=SOURCE, next=5, topic_id=None, moved_ms=moved_ms)]

    async def test_an_unknown_app_lets_nothing_in(self, bench: Bench) -> None:
        inbox = bench.store.inbox()
        with refused(UnknownApp, "'nobody'", "mail"):
            await inbox.take([bench.spec(), bench.spec(app="nobody")], [letter(bench)], [move(None, 2)])
        assert await jobs_in(bench.store) == 0
        assert (await inbox.letters(LetterQuery(room=ROOM))).letters == []
        assert await inbox.positions() == []

    async def test_of_two_who_read_the_same_partition_one_gets_in(self, bench: Bench) -> None:
        inboxes = [(await bench.process()).inbox() for _ in range(3)]
        seen = None
        for following in range(10, 60, 10):
            answers = await asyncio.gather(
                *(inbox.take([bench.spec()], [letter(bench)], [move(seen, following)]) for inbox in inboxes),
                return_exceptions=True,
            )
            won = [answer for answer in answers if not isinstance(answer, BaseException)]
            assert len(won) == 1
            assert [type(answer) for answer in answers].count(PositionsMoved) == 2
            seen = following
        assert await jobs_in(bench.store) == 5
        assert len((await bench.store.inbox().letters(LetterQuery(room=ROOM))).letters) == 5

    async def test_those_who_read_other_partitions_do_not_meet(self, bench: Bench) -> None:
        inboxes = [(await bench.process()).inbox() for _ in range(3)]
        for seen, following in ((None, 10), (10, 20), (20, 30)):
            await asyncio.gather(
                *(
                    inbox.take([bench.spec()], [], [move(seen, following, Source("door", "jobs", number))])
                    for number, inbox in enumerate(inboxes)
                )
            )
        assert [position.next for position in await inboxes[0].positions()] == [30, 30, 30]
        assert await jobs_in(bench.store) == 9

    async def test_every_group_topic_and_partition_has_a_place_of_its_own(self, bench: Bench) -> None:
        inbox = bench.store.inbox()
        sources = [Source(g, t, p) for g in ("door", "Door", "two") for t in ("jobs", "sms") for p in (0, 2, 11)]
        await inbox.take([], [], [move(None, n, source) for n, source in enumerate(sources)])
        everything = await inbox.positions()
        assert [position.source for position in everything] == sorted(sources)
        assert {position.source: position.next for position in everything} == {s: n for n, s in enumerate(sources)}
        assert [p.source.partition for p in await inbox.positions("two", "sms")] == [0, 2, 11]
        assert {p.source.topic for p in await inbox.positions("Door")} == {"jobs", "sms"}
        assert {p.source.group for p in await inbox.positions(topic="sms")} == {"Door", "door", "two"}
        assert await inbox.positions("nobody") == []

    async def test_a_place_remembers_which_topic_it_is_of(self, bench: Bench) -> None:
        inbox = bench.store.inbox()
        for seen, topic_id, remembered in ((None, "one", "one"), (1, None, "one"), (2, "two", "two")):
            await inbox.take([], [], [move(seen, (seen or 0) + 1, topic_id=topic_id)])
            assert [position.topic_id for position in await inbox.positions()] == [remembered]

    async def test_places_are_set_by_hand_all_or_none(self, bench: Bench) -> None:
        inbox = bench.store.inbox()
        await inbox.take([], [], [move(None, 50), move(None, 60, OTHER)])
        with refused(PositionsMoved, "partition 1", "at offset 61"):
            await inbox.reset([move(50, 0), move(61, 0, OTHER)])
        assert [position.next for position in await inbox.positions()] == [50, 60]
        await inbox.reset([move(60, 2, OTHER), move(50, 1), move(None, 7, Source("door", "sms", 0))])
        assert [position.next for position in await inbox.positions()] == [1, 2, 7]
        with refused(PositionsMoved):
            await inbox.take([bench.spec()], [], [move(50, 51)])

    async def test_a_move_to_the_same_place_is_a_move(self, bench: Bench) -> None:
        inbox = bench.store.inbox()
        await inbox.take([], [], [move(None, 5)])
        await inbox.take([bench.spec()], [], [move(5, 5)])
        assert await jobs_in(bench.store) == 1

    async def test_nothing_but_letters_or_nothing_at_all_can_be_taken(self, bench: Bench) -> None:
        inbox = bench.store.inbox()
        assert list(await inbox.take([], [], [])) == []
        assert list(await inbox.take([], [letter(bench, 4)], [])) == []
        assert offsets((await inbox.letters(LetterQuery(room=ROOM))).letters) == [4]

    async def test_a_large_batch_with_keys_is_taken_in_one_call(self, bench: Bench) -> None:
        specs = [keyed(bench, str(number)) for number in range(2500)]
        accepted = await bench.store.inbox().take(specs, [], [move(None, 2500)])
        assert len({a.key for a in accepted}) == 2500
        assert not any(a.repeated for a in accepted)
        owner = await bench.owner()
        assert [job.key for job in await owner.scan()] == sorted(keys(accepted))

    @needing(Ability.OWNERSHIP)
    async def test_the_owner_is_asked_to_look_at_what_was_taken_before_the_line(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=5000)
        soon, _ = await bench.store.inbox().take([bench.spec(2000), bench.spec(9000)], [], [move(None, 2)])
        assert owner.pokes == [SHARD]
        (request,) = await owner.requests()
        assert (request.change, request.keys) == (None, (soon.key,))

    # Idempotency keys

    async def test_a_repeated_key_is_skipped_whatever_its_content(self, bench: Bench) -> None:
        inbox = bench.store.inbox()
        batch = [keyed(bench), keyed(bench, "other"), keyed(bench, digest=b"another"), keyed(bench)]
        first, other, differing, again = await inbox.take(batch, [], [move(None, 4)])
        assert [(a.repeated, a.differs) for a in (first, other, differing, again)] == [
            (False, False), (False, False), (True, True), (True, False),
        ]  # fmt: skip
        assert differing.key == again.key == first.key
        elsewhere = (await bench.process()).inbox()
        later = await elsewhere.take(
            [keyed(bench, "new"), keyed(bench, digest=b"another"), keyed(bench), keyed(bench, digest=b"another")],
            [],
            [move(4, 8)],
        )
        assert [(a.repeated, a.differs) for a in later] == [(False, False), (True, True), (True, False), (True, True)]
        assert keys(later[1:]) == [first.key] * 3
        assert await jobs_in(bench.store) == 3
        assert await inbox.live_keys() == 3

    async def test_a_key_that_another_door_took_is_known(self, bench: Bench) -> None:
        (first,) = await bench.store.add([keyed(bench)])
        same, differing = await bench.store.inbox().take([keyed(bench), keyed(bench, digest=b"x")], [], [move(None, 2)])
        assert (same.key, same.repeated, same.differs) == (first.key, True, False)
        assert (differing.key, differing.repeated, differing.differs) == (first.key, True, True)

    async def test_repeats_and_new_jobs_are_told_apart_in_a_large_batch(self, bench: Bench) -> None:
        inbox = bench.store.inbox()
        before = await inbox.take([keyed(bench, str(n)) for n in range(0, 900, 3)], [], [move(None, 300)])
        answers = await inbox.take([keyed(bench, str(n)) for n in range(900)], [], [move(300, 1200)])
        assert keys(answers[::3]) == keys(before)
        assert [a.repeated for a in answers] == [n % 3 == 0 for n in range(900)]
        assert await jobs_in(bench.store) == 900

    async def test_a_key_at_two_doors_at_once_makes_one_job(self, bench: Bench) -> None:
        inboxes = [(await bench.process()).inbox() for _ in range(3)]
        answers = await asyncio.gather(
            *(
                inbox.take([keyed(bench, str(n)) for n in range(20)], [], [move(None, 20, Source("door", "jobs", p))])
                for p, inbox in enumerate(inboxes)
            )
        )
        assert keys(answers[0]) == keys(answers[1]) == keys(answers[2])
        assert await jobs_in(bench.store) == 20
        assert sum(not a.repeated for answer in answers for a in answer) == 20


class DeadLettersContract(Promises):
    """What a store promises of messages that could not become jobs; doors put them in, where nodes work."""

    needs = frozenset({Ability.DEAD_LETTERS})

    async def test_a_dead_letter_comes_back_byte_for_byte(self, bench: Bench) -> None:
        door = await door_of(bench)
        inbox = bench.store.inbox()
        every = bytes(range(256))
        letters = [
            letter(bench, 0, key=every, value=every * 100, headers=(("a", every), ("a", b""), ("naïve", None))),
            letter(bench, 1, key=None, value=None, headers=()),
            letter(bench, 2, key=b"", value=b"", headers=(("", b""),)),
            letter(bench, 3, error="'quoted' \\ \"Å\" %s ? \n", note="%s", dlq_topic=None, state=LetterState.KEPT),
            letter(bench, (1 << 62) + 1, source=Source("ä", "Topic.with-all_signs", 2**31 - 1)),
        ]
        await door.take([], letters, [move(None, 5)])
        assert [await inbox.letter(one.id) for one in letters] == letters
        assert (await inbox.letters(LetterQuery(room=ROOM, oldest_first=True))).letters == letters
        assert await inbox.letter(letters[0].id[:-1] + "x") is None
        assert await inbox.letter("no id") is None

    async def test_a_dead_letter_of_ten_megabytes_is_kept(self, bench: Bench) -> None:
        door = await door_of(bench)
        inbox = bench.store.inbox()
        large = letter(bench, value=bytes(range(256)) * 40_960)
        await door.take([bench.spec()], [letter(bench, 1), large, letter(bench, 2)], [move(None, 3)])
        assert await inbox.letter(large.id) == large

    async def test_no_sign_in_an_error_keeps_a_letter_out(self, bench: Bench) -> None:
        door = await door_of(bench)
        inbox = bench.store.inbox()
        odd = letter(bench, error="a\0b \ud800 \U0001f600" + "x" * 100_000)
        await door.take([], [odd], [move(None, 1)])
        found = await inbox.letter(odd.id)
        assert found is not None
        assert found.error.startswith("a\\0b \\ud800 \U0001f600xxx")

    async def test_dead_letters_are_listed_newest_first_a_page_at_a_time(self, bench: Bench) -> None:
        door = await door_of(bench)
        inbox = bench.store.inbox()
        for offset in range(7):
            await door.take([], [letter(bench, offset)], [])
            bench.clock.advance(offset % 2)  # two of one moment, too
        found = await pages(inbox, LetterQuery(room=ROOM, limit=3))
        assert [offsets(page.letters) for page in found] == [[6, 5, 4], [3, 2, 1], [0]]
        found = await pages(inbox, LetterQuery(room=ROOM, limit=7, oldest_first=True))
        assert [offsets(page.letters) for page in found] == [[0, 1, 2, 3, 4, 5, 6]]
        with refused(InvalidRequest, "'nonsense'"):
            await inbox.letters(LetterQuery(room=ROOM, cursor="nonsense"))

    async def test_dead_letters_are_listed_by_group_topic_state_and_age(self, bench: Bench) -> None:
        door = await door_of(bench)
        inbox = bench.store.inbox()
        began = bench.now
        for offset in range(4):
            source = Source(f"g{offset % 2}", f"t{offset // 2}", 0)
            state = LetterState.KEPT if offset == 3 else LetterState.UNSENT
            await door.take([], [letter(bench, offset, source=source, state=state)], [])
            bench.clock.advance(10)

        async def found(**wanted: Any) -> list[int]:
            return offsets((await inbox.letters(LetterQuery(room=ROOM, oldest_first=True, **wanted))).letters)

        assert await found(group="g0") == [0, 2]
        assert await found(topic="t1") == [2, 3]
        assert await found(state=LetterState.KEPT) == [3]
        assert await found(before_ms=began + 20) == [0, 1]
        assert await found(before_ms=began + 21) == [0, 1, 2]
        assert await found(group="g1", topic="t0", state=LetterState.UNSENT, before_ms=began + 100) == [1]
        assert await found(group="g1", topic="t0", state=LetterState.SENT) == []
        assert await door.letter_counts() == {("t0", "unsent"): 2, ("t1", "unsent"): 1, ("t1", "kept"): 1}

    async def test_a_page_of_dead_letters_ends_where_the_room_does(self, bench: Bench) -> None:
        door = await door_of(bench)
        inbox = bench.store.inbox()
        sizes = (100, 5000, 10, 10, 3000, 10)
        await door.take([], [letter(bench, n, key=None, value=bytes(size)) for n, size in enumerate(sizes)], [])
        found = await pages(inbox, LetterQuery(room=1000, oldest_first=True))
        assert [offset for page in found for offset in offsets(page.letters)] == list(range(6))
        assert all(len(page.letters) == 1 or sum(len(o.value or b"") for o in page.letters) <= 1000 for page in found)
        assert len(found) <= 5

    @needing(Ability.INBOX)
    async def test_only_unsent_dead_letters_are_marked(self, bench: Bench) -> None:
        inbox = bench.store.inbox()
        letters = [letter(bench, n) for n in range(3)] + [letter(bench, 3, state=LetterState.KEPT)]
        await inbox.take([], letters, [])
        everything = [one.id for one in letters]
        await inbox.mark([everything[0]], LetterState.SENT)
        await inbox.mark([everything[1]], LetterState.REFUSED, "too large: \0")
        await inbox.mark([*everything, "no id", new_letter_id(bench.now)], LetterState.SENT, "again")
        await inbox.mark([], LetterState.SENT)
        found = (await inbox.letters(LetterQuery(room=ROOM, oldest_first=True))).letters
        assert [(str(one.state), one.note) for one in found] == [
            ("sent", None), ("refused", "too large: \\0"), ("sent", "again"), ("kept", None),
        ]  # fmt: skip

    async def test_a_dropped_letter_keeps_its_message_and_is_not_sent(self, bench: Bench) -> None:
        inbox, door = bench.store.inbox(), await door_of(bench)
        states = (LetterState.UNSENT, LetterState.SENT, LetterState.KEPT, LetterState.REFUSED)
        letters = [letter(bench, n, state=state, note=f"note {n}") for n, state in enumerate(states)]
        untouched = letter(bench, 9)
        await door.take([], [*letters, untouched], [])
        ids = [one.id for one in letters]
        assert await inbox.drop(ids) == dict.fromkeys(ids, LetterState.DROPPED)
        await door.mark([*ids, untouched.id], LetterState.SENT, "delivered")
        found = (await inbox.letters(LetterQuery(room=ROOM, oldest_first=True))).letters
        assert list(found[:4]) == [msgspec.structs.replace(one, state=LetterState.DROPPED) for one in letters]
        assert (found[4].state, found[4].note) == (LetterState.SENT, "delivered")
        assert offsets((await inbox.letters(LetterQuery(room=ROOM, state=LetterState.UNSENT))).letters) == []
        assert await door.letter_counts() == {("jobs", "dropped"): 4, ("jobs", "sent"): 1}

    async def test_a_dropped_letter_can_be_replayed(self, bench: Bench) -> None:
        inbox, door = bench.store.inbox(), await door_of(bench)
        lost = letter(bench)
        await door.take([], [lost], [])
        await inbox.drop([lost.id])
        job = await inbox.replay(lost.id, bench.spec(60_000))
        assert not job.repeated
        assert await inbox.drop([lost.id]) == {lost.id: LetterState.REPLAYED}
        found = await inbox.letter(lost.id)
        assert found is not None
        assert (found.state, found.note) == (LetterState.REPLAYED, job.id)
        assert await jobs_in(bench.store) == 1

    async def test_a_letter_that_is_dropped_and_replayed_at_once_is_a_job(self, bench: Bench) -> None:
        door = await door_of(bench)
        inbox, elsewhere = bench.store.inbox(), (await bench.process()).inbox()
        letters = [letter(bench, n) for n in range(5)]
        await door.take([], letters, [])
        ids = [one.id for one in letters]
        await asyncio.gather(elsewhere.drop(ids), *(inbox.replay(one, bench.spec()) for one in ids))
        assert await door.letter_states(ids) == dict.fromkeys(ids, LetterState.REPLAYED)
        assert await jobs_in(bench.store) == 5

    async def test_a_drop_says_what_became_of_each_letter_that_exists(self, bench: Bench) -> None:
        inbox, door = bench.store.inbox(), await door_of(bench)
        letters = [letter(bench, n) for n in range(600)]
        await door.take([], letters, [])
        ids = [one.id for one in letters]
        await inbox.replay(ids[5], bench.spec())
        expected = {one: LetterState.REPLAYED if one == ids[5] else LetterState.DROPPED for one in ids}
        for _ in range(2):
            assert await inbox.drop([*ids, "no id", new_letter_id(bench.now)]) == expected
        assert await door.letter_states([*ids, "no id", new_letter_id(bench.now)]) == expected
        assert await inbox.drop([]) == await door.letter_states([]) == {}

    async def test_a_dead_letter_becomes_a_job_once(self, bench: Bench) -> None:
        door = await door_of(bench)
        inbox, elsewhere = bench.store.inbox(), (await bench.process()).inbox()
        lost = letter(bench)
        await door.take([], [lost], [])
        first = await inbox.replay(lost.id, bench.spec(60_000))
        again = await elsewhere.replay(lost.id, bench.spec(90_000))
        assert (first.repeated, again) == (False, Accepted(first.key, first.due_ms, repeated=True))
        assert await jobs_in(bench.store) == 1
        found = await inbox.letter(lost.id)
        assert found is not None
        assert (found.state, found.note) == (LetterState.REPLAYED, first.id)
        await door.mark([lost.id], LetterState.SENT)
        assert await inbox.letter(lost.id) == found

    async def test_a_dead_letter_that_two_replay_at_once_becomes_one_job(self, bench: Bench) -> None:
        door = await door_of(bench)
        inboxes = [(await bench.process()).inbox() for _ in range(3)]
        replayable = frozenset(LetterState) - {LetterState.REPLAYED}
        for state in sorted(replayable):
            lost = letter(bench, state=state)
            await door.take([], [lost], [])
            answers = await asyncio.gather(*(inbox.replay(lost.id, bench.spec()) for inbox in inboxes))
            assert len({a.key for a in answers}) == 1
            assert sorted(a.repeated for a in answers) == [False, True, True]
        assert await jobs_in(bench.store) == len(replayable)

    async def test_a_replayed_job_whose_key_is_known_is_the_first_one(self, bench: Bench) -> None:
        door = await door_of(bench)
        inbox = bench.store.inbox()
        lost = letter(bench)
        (first,) = await door.take([keyed(bench)], [lost], [])
        for _ in range(2):
            answer = await inbox.replay(lost.id, keyed(bench, digest=b"another"))
            assert (answer.key, answer.repeated) == (first.key, True)
        assert await jobs_in(bench.store) == 1
        found = await inbox.letter(lost.id)
        assert found is not None
        assert found.note == first.id

    async def test_what_cannot_be_replayed_stays_as_it_is(self, bench: Bench) -> None:
        door = await door_of(bench)
        inbox = bench.store.inbox()
        lost = letter(bench)
        await door.take([], [lost], [])
        unknown: list[tuple[type[SchedulerError], str, str]] = [
            (UnknownLetter, new_letter_id(bench.now), "mail"),
            (UnknownLetter, "no id", "mail"),
            (UnknownApp, lost.id, "nobody"),
        ]
        for error, letter_id, app in unknown:
            with refused(error, app if error is UnknownApp else letter_id):
                await inbox.replay(letter_id, bench.spec(app=app))
        assert await inbox.letter(lost.id) == lost
        assert await jobs_in(bench.store) == 0


class ForgettingContract(Promises):
    """What maintenance promises about dead letters."""

    needs = frozenset({Ability.DEAD_LETTERS})

    async def test_dead_letters_go_after_the_retention_unless_they_are_unsent(self, bench: Bench) -> None:
        inbox, door = bench.store.inbox(), await door_of(bench)
        gone = (LetterState.SENT, LetterState.KEPT, LetterState.REFUSED, LetterState.REPLAYED, LetterState.DROPPED)
        states = (LetterState.UNSENT, *gone)
        await door.take([], [letter(bench, n, state=state) for n, state in enumerate(states)], [])
        node = await bench.node()
        bench.clock.advance(7 * DAY_MS)
        await door.take([], [letter(bench, 9, state=LetterState.SENT)], [])
        await node.ownership.maintain()
        assert len((await inbox.letters(LetterQuery(room=ROOM))).letters) == 7
        bench.clock.advance(1)
        await node.ownership.maintain()
        assert offsets((await inbox.letters(LetterQuery(room=ROOM, oldest_first=True))).letters) == [0, 9]

    async def test_many_and_large_dead_letters_go_too(self, bench: Bench) -> None:
        inbox, door = bench.store.inbox(), await door_of(bench)
        large = [letter(bench, n, value=bytes(3 << 20), state=LetterState.SENT) for n in range(4)]
        unsent = [letter(bench, n) for n in range(4, 7)]
        small = [letter(bench, n, state=LetterState.KEPT) for n in range(7, 1500)]
        await door.take([], [*large, *unsent, *small], [])
        node = await bench.node()
        bench.clock.advance(8 * DAY_MS)
        done = await node.ownership.maintain()
        assert done.rows_pruned >= len(large) + len(small)
        assert offsets((await inbox.letters(LetterQuery(room=ROOM, oldest_first=True))).letters) == [4, 5, 6]
