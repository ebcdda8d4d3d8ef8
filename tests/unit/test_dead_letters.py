"""Dead letters on their way into a table: their ids, and what is left of one that does not fit."""

import pytest

from infinite_scheduler.store.inbox import DeadLetter, LetterState, Source, new_letter_id
from infinite_scheduler.store.sql.inbox import ESCAPED, LONGEST_TEXT, fitting, letter_key, readable

NOW = 1_794_787_200_000


def letter(**fields: object) -> DeadLetter:
    known: dict[str, object] = {"key": b"key", "value": b"value", "headers": (("h", b"1"),), "error": "not JSON"}
    return DeadLetter(
        id=new_letter_id(NOW),
        source=Source("door", "jobs", 0),
        offset=0,
        failed_ms=NOW,
        dlq_topic=None,
        state=LetterState.KEPT,
        **known | fields,  # type: ignore[arg-type]
    )


def test_ids_of_letters_grow_with_time_and_within_a_moment() -> None:
    ids = [new_letter_id(NOW + n // 100) for n in range(1000)]
    assert ids == sorted(set(ids))
    assert all(len(one) == 32 and bytes.fromhex(one) for one in ids)
    assert new_letter_id(0) < new_letter_id(1) < new_letter_id((1 << 48) - 1)


@pytest.mark.parametrize("text", ["", "x", "0" * 31, "0" * 33, "g" * 32, "0" * 30 + "  "])
def test_what_is_no_id_of_a_letter_is_known_as_such(text: str) -> None:
    assert letter_key(text) is None


def test_an_id_is_known_with_dashes_too() -> None:
    key = bytes(range(16))
    assert letter_key(key.hex()) == letter_key("00010203-0405-0607-0809-0a0b0c0d0e0f") == key


@pytest.mark.parametrize("room", [None, 1000, 8 + 2 * ESCAPED])
def test_a_letter_that_fits_stays_as_it_is(room: int | None) -> None:
    one = letter()
    assert fitting(one, room) == one


@pytest.mark.parametrize("room", [0, 1, 7, 100, 999, 12_345])
@pytest.mark.parametrize(
    "large",
    [
        {"value": b"v" * 20_000},
        {"key": b"k" * 20_000, "value": None},
        {"key": b"k" * 20_000, "value": b"v" * 20_000},
        {"headers": (("h", b"v" * 20_000),)},
        {"headers": (("ä" * 600, None),), "value": b"v" * 20_000},
    ],
)
def test_what_is_left_of_a_letter_fits_and_says_what_is_missing(room: int, large: dict[str, object]) -> None:
    whole = letter(**large)
    left = fitting(whole, room)
    assert len(left.key or b"") + len(left.value or b"") + ESCAPED * left.header_size <= room
    assert (whole.key or b"").startswith(left.key or b"")
    assert (whole.value or b"").startswith(left.value or b"")
    assert (left.key is None, left.value is None) == (whole.key is None, whole.value is None)
    assert left.cut_bytes == whole.size - left.size > 0
    assert left.note is not None
    assert f"{left.cut_bytes} bytes" in left.note


def test_as_much_of_the_value_as_fits_is_kept() -> None:
    left = fitting(letter(value=b"v" * 20_000), 10_000)
    assert (left.key, left.headers, len(left.value or b"")) == (b"key", (("h", b"1"),), 10_000 - 3 - 2 * ESCAPED)


def test_texts_are_made_fit_for_every_database() -> None:
    assert readable(None) is None
    assert readable("a\0b\ud800ü") == "a\\0b\\ud800ü"
    long = readable("\0" * 1_000_000)
    assert long is not None
    assert len(long) == 2 * LONGEST_TEXT
