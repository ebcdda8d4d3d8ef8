import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infinite_scheduler.errors import ConfigError, InvalidPayload
from infinite_scheduler.handlers.template import Text, Value, fields_of, find
from infinite_scheduler.model import Job, JobId


def job(payload: bytes = b"{}") -> Job:
    return Job(
        key=JobId.make(1_762_207_200_000, 3, 1, entropy=bytes(range(8))),
        app="shop",
        due_ms=1_762_207_200_250,
        scheduled_ms=1_762_207_200_000,
        payload=payload,
        created_ms=1_762_207_100_000,
        attempt=2,
        request_id="r-1",
        tags=("a", "b"),
    )


def text(template: str, payload: bytes) -> str:
    return Text(template, "the key").fill(job(payload), fields_of(payload))


def value(template: dict[str, Any], payload: bytes) -> bytes:
    return Value(template, "the value").fill(job(payload), fields_of(payload))


def test_fields_are_filled_in_by_their_path() -> None:
    payload = b'{"customer": {"name": "Ada"}, "items": [{"id": 7}, {"id": 8}]}'
    assert text("{customer.name}-{items.1.id}", payload) == "Ada-8"


def test_two_braces_stand_for_one() -> None:
    assert text("{{{a}}}", b'{"a": 1}') == "{1}"
    assert value({"t": "{{}}"}, b"{}") == b'{"t":"{}"}'


@pytest.mark.parametrize("number", [b"9007199254740993", b"1.10", b"1e400", b"-0", b"123456789012345678901234567890"])
def test_a_number_goes_through_digit_by_digit(number: bytes) -> None:
    payload = b'{"n": %b}' % number
    assert text("n{n}", payload) == "n" + number.decode()
    assert value({"n": "{n}"}, payload) == b'{"n":%b}' % number


def test_a_text_that_is_one_placeholder_keeps_the_type() -> None:
    payload = b'{"a": {"x": [1, 2.50, null]}, "t": "te\\u00dft", "b": true, "z": null}'
    filled = value({"a": "{a}", "t": "{t}", "b": "{b}", "z": "{z}", "s": "is {b}", "n": 5, "l": ["{a.x.1}"]}, payload)
    assert filled == (b'{"a":{"x": [1, 2.50, null]},"t":"te\\u00dft","b":true,"z":null,"s":"is true","n":5,"l":[2.50]}')


def test_what_the_job_says_of_itself_can_be_filled_in() -> None:
    own = job()
    template = "{job.id} {job.app} {job.attempt} {job.due_at} {job.due_ms} {job.scheduled_time} {job.priority}"
    assert Text(template, "the key").fill(own, {}) == (
        f"{own.id} shop 2 2025-11-03T22:00:00.250Z 1762207200250 2025-11-03T22:00:00.000Z normal"
    )
    filled = Value({"a": "{job.attempt}", "t": "{job.tags}", "g": "{job.group}", "d": "{job.data}"}, "the value")
    assert filled.fill(job(b'{"x": 1.0}'), {}) == b'{"a":2,"t":["a","b"],"g":null,"d":{"x": 1.0}}'


@pytest.mark.parametrize("template", ["{a.b}", "{a.0}", "{nothing}", "{list.9}", "{list.x}"])
def test_a_field_that_is_missing_is_named(template: str) -> None:
    with pytest.raises(InvalidPayload, match=f"no field '{template[1:-1]}', which the key needs"):
        text(template, b'{"a": 1, "list": [1]}')


@pytest.mark.parametrize(("field", "kind"), [("z", "null"), ("o", "an object"), ("l", "a list")])
def test_what_has_no_text_is_refused_in_a_text(field: str, kind: str) -> None:
    with pytest.raises(InvalidPayload, match=f"'{field}' is {kind}"):
        text(f"{{{field}}}", b'{"z": null, "o": {}, "l": []}')


@pytest.mark.parametrize("payload", [b"[1]", b"null", b"3", b'"a"'])
def test_data_that_is_no_object_has_no_fields(payload: bytes) -> None:
    with pytest.raises(InvalidPayload, match="must be an object"):
        fields_of(payload)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{", "has a single brace"),
        ("a}", "has a single brace"),
        ("{a", "has a single brace"),
        ("{}", "use the name of a field"),
        ("{a..b}", "use the name of a field"),
        ("{a b}", "use the name of a field"),
        ("{job}", "use one of {job.id}"),
        ("{job.idd}", "use one of {job.id}"),
    ],
)
def test_a_template_that_cannot_be_read_is_refused_with_what_to_write(template: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Text(template, "the key")
    with pytest.raises(ConfigError, match=words):
        Value({"deep": [{"er": template}]}, "the value")


@pytest.mark.parametrize("template", [{"a": object()}, {1: "a"}, {"a": b"bytes"}, {"a": {2: 3}}])
def test_a_value_that_json_does_not_have_is_refused(template: Any) -> None:
    with pytest.raises(ConfigError, match="JSON"):
        Value(template, "the value")


def test_the_needed_paths_are_known() -> None:
    assert Value({"a": ["{x.y}", {"b": "{z}-{job.id}"}]}, "the value").paths == [("x", "y"), ("z",)]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1), json_values, min_size=1))
def test_whatever_the_data_is_a_field_comes_through_as_it_was(data: dict[str, Any]) -> None:
    payload = json.dumps(data).encode()
    for name, inner in data.items():
        found = find(fields_of(payload), (name,))
        assert found is not None
        assert json.loads(bytes(found)) == inner


@given(st.dictionaries(st.text(), json_values))
def test_a_template_without_placeholders_is_written_as_it_is(template: dict[str, Any]) -> None:
    doubled = _doubled(template)
    assert json.loads(Value(doubled, "the value").fill(job(), {})) == json.loads(json.dumps(template))


def _doubled(value: Any) -> Any:
    match value:
        case str():
            return value.replace("{", "{{").replace("}", "}}")
        case dict():
            return {name: _doubled(inner) for name, inner in value.items()}
        case list():
            return [_doubled(inner) for inner in value]
        case _:
            return value
