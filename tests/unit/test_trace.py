"""The header by which a trace goes through: what is read of it, and what is written."""

import pytest

from infinite_scheduler.kafka.trace import is_trace_id, parent, trace_id
from infinite_scheduler.model import JobId

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


def found(*values: str | bytes | None, name: str = "traceparent") -> str | None:
    headers = [(name, value.encode() if isinstance(value, str) else value) for value in values]
    return trace_id([("before", b"1"), *headers, ("behind", None)])


@pytest.mark.parametrize(
    "value",
    [
        GOOD,
        f"00-{TRACE}-{SPAN}-00",
        f"01-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01-what-comes-later",
        f"fe-{TRACE}-{SPAN}-01-",
    ],
)
def test_a_trace_is_found_in_this_version_and_in_later_ones(value: str) -> None:
    assert found(value) == TRACE


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "00",
        TRACE,
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"0g-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}f-{SPAN}-01",
        f"00-{TRACE}-{SPAN[1:]}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00_{TRACE}_{SPAN}_01",
        f"{GOOD}-more",
        f"{GOOD}\n",
        f"01-{TRACE}-{SPAN}-01more",
        f" {GOOD}",
        b"\xff\xfe",
    ],
)
def test_what_is_no_trace_is_none(value: str | bytes | None) -> None:
    assert found(value) is None


def test_other_headers_name_no_trace() -> None:
    assert found(GOOD, name="tracestate") is None
    assert trace_id(()) is None


def test_of_several_the_last_counts() -> None:
    other = "f" * 32
    assert found(GOOD, f"00-{other}-{SPAN}-01") == other
    assert found(GOOD, "bad") is None


@pytest.mark.parametrize(
    "text", [None, "", "0" * 32, TRACE.upper(), TRACE[1:], f"{TRACE}0", f"{TRACE[:-1]}g", f"{TRACE}\n", "r-1"]
)
def test_only_32_lower_hexadecimal_digits_are_the_id_of_a_trace(text: str | None) -> None:
    key = JobId.make(1_767_225_600_000, 3, 1)
    assert is_trace_id(TRACE)
    assert not is_trace_id(text)
    assert parent(key, 3, text) == f"00-{key.hex()}-0000000000000003-01".encode()


def test_jobs_of_one_trace_have_spans_of_their_own_and_each_attempt_another() -> None:
    keys = [JobId.make(1_767_225_600_000, 3, 1, entropy=bytes(7) + bytes((number,))) for number in (0, 64)]
    made = [parent(key, attempt, TRACE) for key in keys for attempt in (1, 2)]
    assert {trace_id([("traceparent", each)]) for each in made} == {TRACE}
    assert len(set(made)) == 4
    assert parent(keys[0], 2, TRACE) == made[1]
