import contextlib
import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infinite_scheduler.errors import InvalidPayload, InvalidRequest, InvalidTime
from infinite_scheduler.ingest.payload import MAX_DEPTH
from infinite_scheduler.ingest.request import make_spec, parse_line
from infinite_scheduler.model import MAX_DUE_MS, JobSpec, Priority

NOW_MS = 1_900_000_000_000
UTC = ZoneInfo("UTC")


def spec(app: str = "shop", *, scheduled_ms: int = NOW_MS, absolute: bool = True, **fields: Any) -> JobSpec:
    return make_spec(app, scheduled_ms=scheduled_ms, absolute=absolute, **fields)


def line(text: bytes | str, app: str = "shop") -> JobSpec:
    return parse_line(text, app=app, now_ms=NOW_MS, zone=UTC)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=5)
    ),
    max_leaves=20,
)


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Text(str):
    __slots__ = ()


class Always:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Angry(dict[str, int]):
    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    __hash__ = None


@dataclasses.dataclass
class Order:
    number: int = 1


class TestData:
    @given(json_values)
    @example(9007199254740993)
    @example(2**64)
    @example(-(2**63) - 1)
    @example(5e-324)
    @example(1.7976931348623157e308)
    def test_json_comes_back_exactly(self, data: Any) -> None:
        payload = spec(data=data).payload
        assert msgspec.json.decode(payload) == data
        assert json.loads(payload) == data
        assert spec(payload=payload).payload == payload

    @given(json_values)
    def test_payloads_of_other_encoders_are_kept_byte_for_byte(self, data: Any) -> None:
        payload = json.dumps(data, indent=1).encode()
        assert spec(payload=payload).payload == payload
        assert msgspec.json.decode(payload) == data

    @pytest.mark.parametrize(
        ("data", "comes_back"),
        [
            ((1, (2, 3)), [1, [2, 3]]),
            ({"a": (1,)}, {"a": [1]}),
            (Colour.RED, "red"),
            ([Size.BIG], [3]),
            ({Text("k"): Text("v")}, {"k": "v"}),
            (Angry(a=1), {"a": 1}),
            (None, None),
        ],
    )
    def test_what_is_as_good_as_json_is_taken(self, data: object, comes_back: object) -> None:
        assert msgspec.json.decode(spec(data=data).payload) == comes_back

    @pytest.mark.parametrize(
        ("data", "says"),
        [
            (float("nan"), r"data is nan"),
            ({"a": [1, float("inf")]}, r"data\.a\[1\] is inf"),
            ({"a": {1: 2}}, r"data\.a has the key 1, which is an int"),
            ({None: 2}, r"the key None"),
            ({True: 2}, r"the key True"),
            ({"a": "\ud800"}, r"data\.a contains half of a surrogate pair"),
            ({"\udfff": 1}, r"a key of data contains half of a surrogate pair"),
            ([b"x"], r"data\[0\] is a bytes"),
            ({"at": datetime.datetime(2030, 1, 1)}, r"data\.at is a datetime"),  # noqa: DTZ001
            (decimal.Decimal("1.5"), r"data is a Decimal"),
            (uuid.UUID(int=1), r"data is an UUID"),
            ({1, 2}, r"data is a set"),
            (Order(), r"data is an Order"),
            (object(), r"data is an object"),
            ([Always()], r"data\[0\] is an Always"),
            ([10**5000], r"data\[0\] is a number of \d+ bits"),
        ],
    )
    def test_what_json_does_not_have_is_refused_with_its_place(self, data: object, says: str) -> None:
        with pytest.raises(InvalidPayload, match=says):
            spec(data=data)

    @pytest.mark.parametrize(
        ("payload", "says"),
        [
            (b"", "not valid JSON"),
            (b"{", "not valid JSON"),
            (b"{} {}", "not valid JSON"),
            (b"NaN", "not valid JSON"),
            (b"[1,]", "not valid JSON"),
            (b"1e999", "out of range"),
            (b'"\\ud800"', "not valid JSON"),
            (b'"\xff"', "not UTF-8"),
            (b'{"\xed\xa0\x80":1}', "not UTF-8"),
            (b"\xef\xbb\xbf1", "not valid JSON"),
            (b"[" * 5000, "nested"),
            (b"1" * 5000, "out of range"),
            ("{}", "a str"),
            (7, "an int"),
        ],
    )
    def test_bytes_that_are_no_json_are_refused(self, payload: Any, says: str) -> None:
        with pytest.raises(InvalidPayload, match=says):
            spec(payload=payload)

    def test_nesting_has_a_limit_however_it_comes(self) -> None:
        def nested(depth: int, kind: str = "list") -> Any:
            value: Any = 1
            for _ in range(depth):
                value = [value] if kind == "list" else {"a": value} if kind == "dict" else (value,)
            return value

        for kind in ("list", "dict", "tuple"):
            payload = spec(data=nested(MAX_DEPTH, kind)).payload
            assert spec(payload=payload).payload == payload
            for depth in (MAX_DEPTH + 1, 5_000):
                with pytest.raises(InvalidPayload, match="nested more than 100 deep"):
                    spec(data=nested(depth, kind))
            with pytest.raises(InvalidPayload, match="nested"):
                spec(payload=b"[" + payload + b"]")
        assert spec(data=[[]] * 5_000).payload
        assert spec(data="[" * 5_000).payload
        itself: list[Any] = []
        itself.append(itself)
        with pytest.raises(InvalidPayload, match="contains itself"):
            spec(data=itself)

    def test_a_payload_that_is_too_large_is_refused_with_size_limit_and_setting(self) -> None:
        assert spec(data="x" * 98, max_payload=100).payload == b'"' + b"x" * 98 + b'"'
        for fields in ({"data": "x" * 99}, {"payload": b'"' + b"x" * 99 + b'"'}):
            with pytest.raises(InvalidPayload, match=r"101 bytes.*100.*limits\.payload"):
                spec(max_payload=100, **fields)

    def test_data_and_payload_together_are_refused(self) -> None:
        with pytest.raises(InvalidPayload, match="both"):
            spec(data=1, payload=b"1")

    def test_no_data_is_null(self) -> None:
        assert spec().payload == b"null"


class TestFields:
    def test_all_fields_arrive(self) -> None:
        made = spec(
            payload=b"1",
            priority="high",
            idempotency_key="k",
            request_id="r",
            job_name="n",
            group="g",
            tags=["a", "b"],
        )
        assert made == JobSpec(
            app="shop",
            scheduled_ms=NOW_MS,
            payload=b"1",
            priority=Priority.HIGH,
            idempotency_key="k",
            digest=made.digest,
            request_id="r",
            job_name="n",
            group="g",
            tags=("a", "b"),
        )

    @pytest.mark.parametrize("priority", ["low", "LOW", Priority.LOW])
    def test_priorities_have_names(self, priority: Any) -> None:
        assert spec(priority=priority).priority is Priority.LOW

    @pytest.mark.parametrize(
        ("fields", "says"),
        [
            ({"app": "Shop"}, "app name 'Shop'"),
            ({"app": 7}, "app name 7"),
            ({"scheduled_ms": -1}, "out of range"),
            ({"scheduled_ms": MAX_DUE_MS + 1}, "1970 to 9999"),
            ({"scheduled_ms": 10**5000}, "out of range"),
            ({"scheduled_ms": 1.5}, "out of range"),
            ({"scheduled_ms": True}, "out of range"),
            ({"priority": "urgent"}, "'urgent' is unknown: use 'high', 'normal', 'low'"),
            ({"priority": 0}, "priority 0 is unknown"),
            ({"priority": 10**5000}, "bits"),
            ({"priority": None}, "priority None"),
            ({"idempotency_key": ""}, "idempotency_key is empty: leave it out"),
            ({"idempotency_key": "k" * 201}, "idempotency_key has 201 characters: use at most 200"),
            ({"idempotency_key": 5}, "idempotency_key is 5: use a text"),
            ({"idempotency_key": []}, "idempotency_key is of type list"),
            ({"request_id": "a\nb"}, r"request_id 'a\\nb' has a character"),
            ({"job_name": "\x00"}, "job_name"),
            ({"group": "\ud800"}, "group"),
            ({"job_name": "n" * 201}, "job_name has 201"),
            ({"tags": "abc"}, "tags is 'abc': use a list of texts"),
            ({"tags": None}, "tags is None"),
            ({"tags": 5}, "tags is 5"),
            ({"tags": ["a"] * 17}, "17 tags: use at most 16"),
            ({"tags": ["a", ""]}, r"tags\[1\] is empty"),
            ({"tags": [None]}, r"tags\[0\] is None: use a text"),
            ({"tags": [7]}, r"tags\[0\] is 7: use a text"),
            ({"tags": ["t" * 65]}, r"tags\[0\] has 65 characters: use at most 64"),
        ],
    )
    def test_a_refusal_says_what_to_change(self, fields: dict[str, Any], says: str) -> None:
        with pytest.raises(InvalidRequest, match=says) as refused:
            spec(**fields)
        assert len(str(refused.value)) < 300

    def test_the_limits_themselves_are_fine(self) -> None:
        full = spec(idempotency_key="ü" * 200, job_name="n" * 200, tags=["t" * 64] * 16, scheduled_ms=MAX_DUE_MS)
        assert (len(full.idempotency_key or ""), len(full.tags), full.scheduled_ms) == (200, 16, MAX_DUE_MS)
        assert spec(scheduled_ms=0).scheduled_ms == 0


class TestDigest:
    def test_without_a_key_there_is_none(self) -> None:
        assert spec(data=1).digest == b""

    def test_it_tells_payloads_apart(self) -> None:
        assert len(spec(data=1, idempotency_key="k").digest) == 16
        assert spec(data=1, idempotency_key="k").digest == spec(data=1, idempotency_key="other").digest
        assert spec(data=1, idempotency_key="k").digest != spec(data=2, idempotency_key="k").digest

    def test_a_moment_counts_and_a_delay_does_not(self) -> None:
        def digest(scheduled_ms: int, *, absolute: bool) -> bytes:
            return spec(scheduled_ms=scheduled_ms, absolute=absolute, idempotency_key="k").digest

        assert digest(1, absolute=True) != digest(2, absolute=True)
        assert digest(1, absolute=False) == digest(2, absolute=False)
        assert digest(0, absolute=True) != digest(0, absolute=False)

    @pytest.mark.parametrize(
        ("at", "is_absolute"),
        [
            ("in 5m", False),
            ("+90s", False),
            (" +90s", False),
            ("now", False),
            ("2030-01-01T00:00:00Z", True),
            (" 2030-01-01", True),
            (NOW_MS, True),
            (str(NOW_MS), True),
        ],
    )
    def test_a_line_knows_a_delay_from_a_moment(self, at: object, is_absolute: bool) -> None:
        text = json.dumps({"at": at, "idempotency_key": "k"})
        first = parse_line(text, app="shop", now_ms=NOW_MS, zone=UTC)
        again = parse_line(text, app="shop", now_ms=NOW_MS + 5, zone=UTC)
        assert (first.scheduled_ms == again.scheduled_ms) is is_absolute
        assert first.digest == again.digest


class TestLines:
    def test_a_line_has_all_that_a_job_may_have(self) -> None:
        text = (
            '{"at": "2030-01-31T09:00:00Z", "data": {"n": 9007199254740993 , "x":1.10}, "idempotency_key": "k",'
            ' "priority": "low", "tags": ["a"], "job_name": "n", "group": null, "request_id": "r"}'
        )
        for form in (text, text.encode()):
            made = line(form)
            assert made.payload == b'{"n": 9007199254740993 , "x":1.10}'
            assert made.scheduled_ms == 1_896_080_400_000
            assert (made.priority, made.tags, made.job_name) == (Priority.LOW, ("a",), "n")
            assert (made.group, made.request_id, made.idempotency_key) == (None, "r", "k")

    def test_delays_count_from_now(self) -> None:
        assert line('{"at": "in 5m"}').scheduled_ms == NOW_MS + 300_000

    @pytest.mark.parametrize(
        ("text", "kind", "says"),
        [
            ("", InvalidRequest, "one JSON object per line"),
            ("[]", InvalidRequest, "one JSON object per line"),
            ("{", InvalidRequest, "one JSON object per line"),
            ('{"at": 1900000000000}{"at": 2}', InvalidRequest, "one JSON object per line"),
            (b"\xff", InvalidRequest, "one JSON object per line"),
            ("\ud800", InvalidRequest, "one JSON object per line"),
            ("{}", InvalidTime, "'at' is missing"),
            ('{"at": null}', InvalidTime, "'at' is missing"),
            ('{"at": "soon"}', InvalidTime, "soon"),
            ('{"at": 1900000000000, "tag": []}', InvalidRequest, "unknown field 'tag': did you mean 'tags'"),
            ('{"at": 1900000000000, "idempotencyKey": "k"}', InvalidRequest, "did you mean 'idempotency_key'"),
            ('{"at": 1900000000000, "zzz": 1}', InvalidRequest, "use one of at, data"),
            ('{"at": 1900000000000, "payload": 1}', InvalidRequest, "unknown field 'payload'"),
            ('{"at": 1900000000000, "max_payload": 1}', InvalidRequest, "unknown field 'max_payload'"),
            ('{"at": 1900000000000, "data": "\\ud800"}', InvalidRequest, "JSON"),
            (b'{"at": 1900000000000, "data": "\xff"}', InvalidPayload, "UTF-8"),
            (b'{"at": 1900000000000, "group": "\xff"}', InvalidRequest, "group"),
            ('{"at": 1900000000000, "tags": {"a": 1}}', InvalidRequest, "tags is of type dict"),
            ('{"at": ' + "[" * 5000 + "]" * 5000 + "}", InvalidRequest, "recursion"),
            ('{"at": 1900000000000, "data": ' + "[" * 500 + "]" * 500 + "}", InvalidPayload, "nested"),
        ],
    )
    def test_a_refusal_says_what_is_wrong(self, text: bytes | str, kind: type[Exception], says: str) -> None:
        with pytest.raises(kind, match=says):
            line(text)

    def test_a_line_is_not_larger_than_allowed(self) -> None:
        with pytest.raises(InvalidPayload, match=r"limits\.payload"):
            parse_line('{"at": 1900000000000, "data": "abcdef"}', app="shop", now_ms=NOW_MS, zone=UTC, max_payload=7)

    @given(st.binary() | st.text())
    def test_whatever_comes_is_a_job_or_an_invalid_request(self, text: bytes | str) -> None:
        with contextlib.suppress(InvalidRequest):
            assert line(text).app == "shop"

    @given(
        st.dictionaries(
            st.sampled_from(["at", "data", "priority", "idempotency_key", "request_id", "job_name", "group", "tags"])
            | st.text(max_size=3),
            json_values | st.text() | st.lists(st.text()),
        )
    )
    def test_whatever_fields_come_make_a_job_or_an_invalid_request(self, fields: dict[str, Any]) -> None:
        with contextlib.suppress(InvalidRequest):
            made = line(json.dumps(fields))
            assert msgspec.json.decode(made.payload) == fields.get("data")

    @given(
        at=st.integers(10**11, MAX_DUE_MS),
        data=json_values,
        priority=st.sampled_from(Priority),
        texts=st.fixed_dictionaries(
            {},
            optional=dict.fromkeys(
                ["idempotency_key", "request_id", "job_name", "group"],
                st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=200),
            ),
        ),
        tags=st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=64), max_size=16),
    )
    def test_valid_lines_arrive_unchanged(
        self, at: int, data: Any, priority: Priority, texts: dict[str, str], tags: list[str]
    ) -> None:
        fields = {"at": at, "data": data, "priority": priority.name.lower(), "tags": tags, **texts}
        made = line(json.dumps(fields))
        assert made.scheduled_ms == at
        assert msgspec.json.decode(made.payload) == data
        assert made.priority is priority
        assert made.tags == tuple(tags)
        assert {name: getattr(made, name) for name in texts} == texts
