"""Where a node begins to read a partition."""

import msgspec
import pytest

from infinite_scheduler.ingest.start_offset import Facts, ends_before_position, needs_bounds, start_offset
from infinite_scheduler.kafka.group_client import Committed
from infinite_scheduler.observe import events
from infinite_scheduler.store.inbox import Move, Source, TopicPosition

SOURCE = Source("group", "topic", 3)


def position(next_: int, topic_id: str | None = "one") -> TopicPosition:
    return TopicPosition(source=SOURCE, next=next_, topic_id=topic_id, moved_ms=0)


def facts(
    position: TopicPosition | None = None,
    committed: int | None = None,
    topic_id: str | None = "one",
    bounds: tuple[int, int] | None = None,
    *,
    ours: bool = False,
    source: Source = SOURCE,
) -> Facts:
    told = None if committed is None else Committed(committed, ours)
    return Facts(source=source, position=position, committed=told, topic_id=topic_id, bounds=bounds)


def test_the_place_in_the_store_counts() -> None:
    begin = start_offset(facts(position(50), committed=50), "earliest")
    assert (begin.offset, begin.move, begin.told) == (50, None, None)


@pytest.mark.parametrize(("committed", "ours"), [(0, False), (49, False), (51, False), (51, True)])
def test_another_committed_offset_is_told_and_has_no_effect(committed: int, ours: bool) -> None:
    begin = start_offset(facts(position(50), committed=committed, ours=ours), "earliest")
    assert (begin.offset, begin.move) == (50, None)
    assert begin.told == events.PositionDiffers(
        topic="topic",
        group="group",
        partition=3,
        position=50,
        committed=committed,
        command=f"infinite-scheduler ingest offsets --group group --reset topic:3={committed}",
    )


@pytest.mark.parametrize("committed", [0, 10, 49])
def test_what_this_program_committed_may_lag_behind(committed: int) -> None:
    begin = start_offset(facts(position(50), committed=committed, ours=True), "earliest")
    assert (begin.offset, begin.move, begin.told) == (50, None, None)


def test_the_command_can_be_pasted_whatever_the_group_is_called() -> None:
    strange = Source("my group; ls", "topic", 3)
    begin = start_offset(facts(position(50), committed=60, source=strange), "earliest")
    assert isinstance(begin.told, events.PositionDiffers)
    assert " --group 'my group; ls' " in begin.told.command


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_group_that_kafka_knows_goes_on_there(reset: str) -> None:
    begin = start_offset(facts(committed=7), reset)
    assert (begin.offset, begin.told) == (7, None)
    assert begin.move == Move(source=SOURCE, seen=None, next=7, topic_id="one")


@pytest.mark.parametrize(("reset", "offset"), [("earliest", 4), ("latest", 9)])
def test_a_new_group_begins_where_it_wants_to_and_that_is_remembered(reset: str, offset: int) -> None:
    assert needs_bounds(facts(), out_of_range=False)
    begin = start_offset(facts(bounds=(4, 9)), reset)
    assert begin.offset == offset
    assert begin.move == Move(source=SOURCE, seen=None, next=offset, topic_id="one")


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_topic_that_was_made_anew_is_read_from_its_beginning(reset: str) -> None:
    anew = facts(position(50), committed=50, topic_id="two")
    assert needs_bounds(anew, out_of_range=False)
    begin = start_offset(facts(position(50), committed=50, topic_id="two", bounds=(0, 80)), reset)
    assert (begin.offset, begin.topic_id) == (0, "two")
    assert begin.move == Move(source=SOURCE, seen=50, next=0, topic_id="two")
    assert begin.told == events.TopicAnew(topic="topic", partition=3, position=50, topic_id="two")


def test_an_id_that_is_not_known_says_nothing_about_the_topic() -> None:
    assert start_offset(facts(position(50), topic_id=None), "earliest").move is None
    assert start_offset(facts(position(50), topic_id=None), "earliest").topic_id == "one"


def test_an_id_that_becomes_known_is_remembered() -> None:
    begin = start_offset(facts(position(50, topic_id=None)), "earliest")
    assert begin.move == Move(source=SOURCE, seen=50, next=50, topic_id="one")
    assert begin.told is None


@pytest.mark.parametrize(("bounds"), [(60, 80), (0, 40)])
@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_place_that_the_topic_does_not_have_leads_to_its_earliest(bounds: tuple[int, int], reset: str) -> None:
    assert needs_bounds(facts(position(50)), out_of_range=True)
    begin = start_offset(facts(position(50), bounds=bounds), reset)
    assert begin.offset == bounds[0]
    assert begin.move == Move(source=SOURCE, seen=50, next=bounds[0], topic_id="one")
    assert begin.told == events.OffsetGone(
        topic="topic", partition=3, position=50, earliest=bounds[0], end=bounds[1], next=bounds[0]
    )


@pytest.mark.parametrize(("resume", "offset"), [(30, 30), (40, 40), (2, 5), (45, 40), (None, 5)])
def test_a_topic_that_has_lost_its_newest_messages_is_read_from_a_little_before(
    resume: int | None, offset: int
) -> None:
    lost = msgspec.structs.replace(facts(position(50), bounds=(5, 40)), resume=resume)
    assert ends_before_position(lost)
    begin = start_offset(lost, "latest")
    assert begin.offset == offset
    assert isinstance(begin.told, events.OffsetGone)
    assert begin.told.next == offset


@pytest.mark.parametrize(
    "other",
    [facts(position(50), bounds=(60, 80)), facts(position(50)), facts(position(50), topic_id="two", bounds=(0, 4))],
)
def test_other_topics_have_lost_nothing(other: Facts) -> None:
    assert not ends_before_position(other)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_partition_that_a_known_group_has_no_place_in_is_read_from_its_beginning(reset: str) -> None:
    added = msgspec.structs.replace(facts(bounds=(4, 9)), is_known=True)
    assert start_offset(added, reset).offset == 4


@pytest.mark.parametrize("bounds", [(50, 80), (0, 50), (0, 80)])
def test_a_place_that_the_topic_has_after_all_is_kept(bounds: tuple[int, int]) -> None:
    begin = start_offset(facts(position(50), bounds=bounds), "earliest")
    assert (begin.offset, begin.move, begin.told) == (50, None, None)


def test_a_committed_offset_that_the_topic_does_not_have_leads_to_its_earliest() -> None:
    begin = start_offset(facts(committed=50, bounds=(60, 80)), "latest")
    assert begin.offset == 60
    assert isinstance(begin.told, events.OffsetGone)


def test_without_a_question_to_the_broker_nothing_is_guessed() -> None:
    with pytest.raises(ValueError, match="bounds are not known"):
        start_offset(facts(), "earliest")
    assert not needs_bounds(facts(position(1)), out_of_range=False)
    assert not needs_bounds(facts(committed=1), out_of_range=False)
