"""A job's id: a UUID that sorts by the moment it is kept under, and tells its shard, priority and table."""

import string
import uuid
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.model import MAX_DUE_MS, JobId, Priority, key_text, position, shard_of, start_of

ONE = "019a8b7c-3d20-8014-9f3a-5c1e2b7d4a60"

moments = st.integers(0, MAX_DUE_MS)
shards = st.integers(0, 255)
priorities = st.sampled_from(Priority)
entropies = st.binary(min_size=8, max_size=8)


class Parts(NamedTuple):
    """What an id is made of, in the order in which it sorts."""

    due_ms: int
    shard: int
    priority: Priority
    later: bool

    def make(self, entropy: bytes | None = None) -> JobId:
        return JobId.make(self.due_ms, self.shard, self.priority, later=self.later, entropy=entropy)


parts = st.builds(Parts, moments, shards, priorities, st.booleans())
near = st.builds(Parts, st.integers(0, 2), st.integers(0, 2), priorities, st.booleans())  # often equal in some part
ids = st.builds(Parts.make, parts, entropies)


@given(parts, entropies)
@example(Parts(0, 0, Priority.HIGH, later=False), bytes(8))
@example(Parts(MAX_DUE_MS, 255, Priority.LOW, later=True), b"\xff" * 8)
def test_the_fields_come_back(given_parts: Parts, entropy: bytes) -> None:
    made = given_parts.make(entropy)
    assert Parts(made.due_ms, made.shard, made.priority, made.later) == given_parts
    assert isinstance(made.priority, Priority)
    assert len(made) == 16


@given(ids)
def test_it_comes_back_from_its_text(made: JobId) -> None:
    again = JobId.parse(str(made))
    assert again == made
    assert isinstance(again, JobId)
    assert str(again) == str(made) == key_text(bytes(made))


@given(ids)
def test_it_is_a_uuid_of_version_8(made: JobId) -> None:
    read = uuid.UUID(str(made))
    assert read.version == 8
    assert read.variant == uuid.RFC_4122
    assert read.bytes == made
    assert str(read) == str(made)


@given(near, near, entropies, entropies)
def test_ids_sort_by_moment_then_shard_then_priority(a: Parts, b: Parts, of_a: bytes, of_b: bytes) -> None:
    assume(a != b)
    first, second = a.make(of_a), b.make(of_b)
    assert (first < second) == (a < b)
    assert (str(first) < str(second)) == (a < b)  # the text sorts as the bytes do


@given(st.lists(ids))
def test_many_sort_as_their_parts_do(made: list[JobId]) -> None:
    assert [(i.due_ms, i.shard, i.priority) for i in sorted(made)] == sorted(
        (i.due_ms, i.shard, i.priority) for i in made
    )


@given(parts, entropies, entropies)
def test_random_bits_change_nothing_else(same: Parts, one: bytes, other: bytes) -> None:
    a, b = same.make(one), same.make(other)
    assert a[:8] == b[:8]
    assert (a == b) == (one[0] & 0x3F == other[0] & 0x3F and one[1:] == other[1:])


def test_ids_without_given_entropy_differ() -> None:
    same = Parts(1, 2, Priority.NORMAL, later=False)
    assert len({same.make() for _ in range(1000)}) == 1000


@given(ids, moments)
def test_a_position_keeps_everything_but_the_moment(made: JobId, due_ms: int) -> None:
    moved = JobId(position(made, due_ms))
    assert moved.due_ms == due_ms
    assert moved[6:] == made[6:]
    assert (moved.shard, moved.priority, moved.later) == (made.shard, made.priority, made.later)
    assert JobId.parse(str(moved)) == moved
    assert position(moved, made.due_ms) == made
    assert shard_of(moved) == shard_of(made) == made.shard


@given(ids)
def test_a_moment_starts_before_its_ids_and_after_those_before_it(made: JobId) -> None:
    assert start_of(made.due_ms) < made < start_of(made.due_ms + 1)


@given(ids)
def test_capital_letters_are_read_too(made: JobId) -> None:
    assert JobId.parse(str(made).upper()) == made


@given(st.text())
@example("")
@example("\udc80")
@example("0" * 32)
@example(ONE[:-1])
@example(ONE + "0")
@example(ONE[:-1] + "g")
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a job id"):
        JobId.parse(text)


@given(st.uuids().filter(lambda u: u.version != 8 or u.variant != uuid.RFC_4122))
@example(uuid.UUID(ONE.replace("-8014-", "-7014-")))
@example(uuid.UUID(ONE.replace("-9f3a-", "-1f3a-")))
@example(uuid.UUID(ONE.replace("-9f3a-", "-cf3a-")))
@example(uuid.UUID(int=0))
def test_other_uuids_are_refused(other: uuid.UUID) -> None:
    with pytest.raises(InvalidRequest, match=str(other)):
        JobId.parse(str(other))


@pytest.mark.parametrize("what", [None, 7, 1.5, True, b"", ONE.encode(), uuid.UUID(ONE), [ONE], {}, object()])
def test_what_is_no_text_is_refused(what: Any) -> None:
    with pytest.raises(InvalidRequest, match="is not a job id"):
        JobId.parse(what)


@given(ids, st.integers(0, 35), st.sampled_from([c for c in string.printable if c not in string.hexdigits + "-"]))
def test_one_wrong_character_is_refused(made: JobId, at: int, wrong: str) -> None:
    text = str(made)
    with pytest.raises(InvalidRequest, match="is not a job id"):
        JobId.parse(text[:at] + wrong + text[at + 1 :])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("1_9a8b7c-3d20-8014-9f3a-5c1e2b7d4a60", id="underscore"),
        pytest.param("+19a8b7c-3d20-8014-9f3a-5c1e2b7d4a60", id="sign"),
        pytest.param(" 19a8b7c-3d20-8014-9f3a-5c1e2b7d4a60", id="blank"),
        pytest.param("019a8b7c-3d20-8014-9f3a-5c1e2b7d4a6\u0660", id="digit of another script"),
    ],
)
def test_what_python_takes_for_a_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a job id"):
        JobId.parse(text)
