"""Orders of transactions of the inbox: each is named after the promise that it puts to test, on any database."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from infinite_scheduler.errors import PositionsMoved
from infinite_scheduler.model import Accepted, JobSpec
from infinite_scheduler.store.inbox import DeadLetter, LetterState, Move, Source, new_letter_id
from infinite_scheduler.store.sql import inbox
from infinite_scheduler.store.sql.new_rows import NewRows
from infinite_scheduler.store.sql.statements import Body, Statements
from tests.listing import jobs_in
from tests.simulation.interleave import Stage
from tests.simulation.scene import APP, LATER, NOW, promise

SOURCE, OTHER = Source("door", "jobs", 0), Source("door", "jobs", 1)

Scene = Callable[[Stage], None]
SCENES: list[Scene] = []
GUARDED: list[Scene] = []
"""Those that are broken when nobody looks whether a place has moved."""

REPLAYED: list[Scene] = []
"""Those that are broken when nobody looks whether a letter was replayed."""

DROPPED: list[Scene] = []
"""Those that are broken when a drop does not look whether a letter was replayed."""


def name_of(play: Scene) -> str:
    return play.__name__


def move_blindly(tx: Statements, moves: Sequence[Move], now_ms: int) -> None:
    """Move places, whatever they were."""
    for move in moves:
        tx.move_position(move, now_ms)


class Undone(Exception):
    """A transaction that is to be rolled back."""


def scene(*lists: list[Scene]) -> Callable[[Scene], Scene]:
    def note(play: Scene) -> Scene:
        for some in (SCENES, *lists):
            some.append(play)
        return play

    return note


def spec(key: str | None = None, digest: bytes = b"same") -> JobSpec:
    return JobSpec(app=APP, scheduled_ms=LATER, payload=b"{}", idempotency_key=key, digest=digest)


def batch_of(*specs: JobSpec) -> NewRows:
    def first_shard(app: str, *, urgent: bool) -> int:
        return 0

    return NewRows.of(specs, NOW, first_shard, strict=False)


def letter(offset: int = 0) -> DeadLetter:
    return DeadLetter(
        id=new_letter_id(NOW),
        source=SOURCE,
        offset=offset,
        key=None,
        value=b"v",
        headers=(),
        error="not JSON",
        failed_ms=NOW,
        dlq_topic=None,
        state=LetterState.UNSENT,
    )


def takes(seen: int | None, to: int, *specs: JobSpec, source: Source = SOURCE) -> Body[list[Accepted]]:
    """One transaction with a letter and jobs; it ends by a look at the apps, where it can be stopped."""
    batch = batch_of(*specs or [spec()])

    def body(tx: Statements) -> list[Accepted]:
        inserted = inbox.take(tx, batch.chunks, [letter()], [Move(source=source, seen=seen, next=to)], NOW)
        tx.read_apps()
        return batch.answers(inserted.repeats)

    return body


def undone(body: Body[object]) -> Body[None]:
    def undoing(tx: Statements) -> None:
        body(tx)
        raise Undone

    return undoing


def resets(seen: int, to: int) -> Body[None]:
    return lambda tx: inbox.move_positions(tx, [Move(source=SOURCE, seen=seen, next=to)], NOW)


def replays(of: DeadLetter, job: JobSpec | None = None) -> Body[Accepted]:
    batch = batch_of(job or spec())

    def body(tx: Statements) -> Accepted:
        accepted, _ = inbox.replay(tx, bytes.fromhex(of.id), batch, NOW)
        tx.read_apps()
        return accepted

    return body


def kept(stage: Stage) -> DeadLetter:
    """A letter that is in the store."""
    made = letter()
    stage.do(lambda tx: inbox.keep_letters(tx, [made]))
    return made


def jobs(stage: Stage) -> int:
    return len(stage.look(lambda tx: jobs_in(tx, APP)))


def next_of(stage: Stage) -> int:
    (position,) = stage.look(lambda tx: tx.read_positions(None, None))
    return position.next


def refused(body: Callable[[], object]) -> bool:
    try:
        body()
    except PositionsMoved:
        return True
    return False


@scene(GUARDED)
def a_partition_that_two_begin_to_read_is_read_once(stage: Stage) -> None:
    first = stage.begin(takes(None, 5), stops_before="read_apps")
    second = stage.begin(takes(None, 5))
    first.result()
    promise(refused(second.result), "the second one finds out")
    promise(jobs(stage) == 1, "nothing is accepted twice")


@scene(GUARDED)
def a_partition_that_two_go_on_reading_is_read_once(stage: Stage) -> None:
    stage.do(takes(None, 5))
    first = stage.begin(takes(5, 9), stops_before="read_apps")
    second = stage.begin(takes(5, 7))
    first.result()
    promise(refused(second.result), "the second one finds out")
    promise(jobs(stage) == 2, "nothing is accepted twice")
    promise(next_of(stage) == 9, "the place is that of what was accepted")


@scene()
def whoever_waits_for_one_that_is_rolled_back_gets_in(stage: Stage) -> None:
    for seen, to in ((None, 5), (5, 9)):
        first = stage.begin(undone(takes(seen, to)), stops_before="read_apps")
        second = stage.begin(takes(seen, to + 1))
        with suppress(Undone):
            first.result()
        second.result()
        promise(next_of(stage) == to + 1, "what was rolled back has moved nothing")
        stage.do(resets(to + 1, to))
    promise(jobs(stage) == 2, "nothing is lost")


@scene(GUARDED)
def a_place_that_is_set_by_hand_meanwhile_refuses_what_was_read(stage: Stage) -> None:
    stage.do(takes(None, 5))
    by_hand = stage.begin(lambda tx: (resets(5, 0)(tx), tx.read_apps()), stops_before="read_apps")
    read = stage.begin(takes(5, 9))
    by_hand.result()
    promise(refused(read.result), "the reader finds out")
    promise(next_of(stage) == 0, "the place stays where it was set")


@scene(GUARDED)
def a_place_is_not_set_by_hand_when_it_has_moved_meanwhile(stage: Stage) -> None:
    stage.do(takes(None, 5))
    read = stage.begin(takes(5, 9), stops_before="read_apps")
    by_hand = stage.begin(resets(5, 0))
    read.result()
    promise(refused(by_hand.result), "whoever sets it finds out")
    promise(next_of(stage) == 9, "what was accepted is not read again")


@scene()
def a_key_that_comes_by_two_partitions_at_once_makes_one_job(stage: Stage) -> None:
    first = stage.begin(takes(None, 1, spec("k"), spec("a")), stops_before="read_apps")
    second = stage.begin(takes(None, 1, spec("b"), spec("k", b"another"), source=OTHER))
    (one, _), (_, other) = first.result(), second.result()
    promise(one.key == other.key and other.repeated and other.differs, "the second one is a repeat")
    promise(jobs(stage) == 3, "a key has one job")


@scene(REPLAYED)
def a_letter_that_two_replay_at_once_becomes_one_job(stage: Stage) -> None:
    lost = kept(stage)
    first = stage.begin(replays(lost), stops_before="read_apps")
    second = stage.begin(replays(lost))
    one, other = first.result(), second.result()
    promise(one.key == other.key and other.repeated and not one.repeated, "both hear of the same job")
    promise(jobs(stage) == 1, "a letter becomes one job")


@scene()
def a_replay_that_is_rolled_back_leaves_the_letter_to_others(stage: Stage) -> None:
    lost = kept(stage)
    first = stage.begin(undone(replays(lost)), stops_before="read_apps")
    second = stage.begin(replays(lost))
    with suppress(Undone):
        first.result()
    promise(not second.result().repeated, "it was not replayed before")
    promise(jobs(stage) == 1, "it becomes one job")


@scene()
def a_letter_that_is_replayed_while_it_is_sent_stays_replayed(stage: Stage) -> None:
    lost = kept(stage)
    key, unsent = bytes.fromhex(lost.id), {LetterState.UNSENT}
    replay = stage.begin(replays(lost), stops_before="read_apps")
    sent = stage.begin(lambda tx: tx.mark_letters([key], LetterState.SENT, None, among=unsent))
    job = replay.result()
    sent.result()
    (found,) = stage.look(lambda tx: tx.read_letters([key]))
    promise((found.state, found.note) == (LetterState.REPLAYED, job.id), "a letter that became a job says so")


def drops(of: DeadLetter) -> Body[LetterState]:
    key = bytes.fromhex(of.id)

    def body(tx: Statements) -> LetterState:
        state = inbox.drop(tx, [key])[key]
        tx.read_apps()
        return state

    return body


def state_of(stage: Stage, of: DeadLetter) -> LetterState:
    (found,) = stage.look(lambda tx: tx.read_letters([bytes.fromhex(of.id)]))
    return found.state


@scene(DROPPED)
def a_letter_that_is_dropped_while_it_is_replayed_is_a_job(stage: Stage) -> None:
    lost = kept(stage)
    replay = stage.begin(replays(lost), stops_before="read_apps")
    drop = stage.begin(drops(lost))
    replay.result()
    promise(drop.result() is LetterState.REPLAYED, "the drop finds out")
    promise(state_of(stage, lost) is LetterState.REPLAYED, "a letter that became a job says so")
    promise(jobs(stage) == 1, "it becomes one job")


@scene()
def a_letter_that_is_replayed_while_it_is_dropped_becomes_a_job(stage: Stage) -> None:
    lost = kept(stage)
    drop = stage.begin(drops(lost), stops_before="read_apps")
    replay = stage.begin(replays(lost))
    promise(drop.result() is LetterState.DROPPED, "it was dropped first")
    promise(not replay.result().repeated, "and replayed then")
    promise(state_of(stage, lost) is LetterState.REPLAYED, "a letter that became a job says so")


@scene()
def a_letter_that_is_dropped_while_it_is_sent_stays_dropped(stage: Stage) -> None:
    lost = kept(stage)
    key, unsent = bytes.fromhex(lost.id), {LetterState.UNSENT}
    drop = stage.begin(drops(lost), stops_before="read_apps")
    sent = stage.begin(lambda tx: tx.mark_letters([key], LetterState.SENT, None, among=unsent))
    drop.result()
    sent.result()
    promise(state_of(stage, lost) is LetterState.DROPPED, "what a person decided stays")
