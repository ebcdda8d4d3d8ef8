"""Moments and delays as people and programs write them."""

from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infinite_scheduler.errors import InvalidTime
from infinite_scheduler.model import MAX_DUE_MS, datetime_of
from infinite_scheduler.policy.calendar import Delay, parse_duration, parse_moment

UTC_ZONE = ZoneInfo("UTC")
BERLIN = ZoneInfo("Europe/Berlin")
NOW = 1_762_207_200_000  # 2025-11-03T22:00:00Z
ZONES = st.sampled_from(("UTC", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe", "America/New_York")).map(
    ZoneInfo
)
LAST_ISO = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z
MOMENTS = st.integers(0, LAST_ISO - 86_400_000)
HUGE = pytest.param(10**5_000, id="huge number")
DIGITS = pytest.param("1" * 5_000, id="many digits")
BLANKS = pytest.param("in " + " " * 90_000 + "5", id="many blanks")
UNITS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}


def parse(value: object, zone: ZoneInfo = UTC_ZONE) -> int:
    return parse_moment(value, now_ms=NOW, zone=zone)


@pytest.mark.parametrize(
    "value",
    [
        "2025-11-03T22:00:00",
        "2025-11-03 22:00:00",
        "2025-11-03T22:00",
        "2025-11-03T22:00:00Z",
        "2025-11-03t22:00:00z",
        "2025-11-03T22:00:00.000",
        "2025-11-03T22:00:00,000000000Z",
        "2025-11-03T23:00:00+01:00",
        "2025-11-03 23:00:00 +0100",
        "2025-11-03T19:30:00-02:30",
        "2025-11-03T19:00:00-03",
        "  now ",
        "Now",
        "+0s",
        "in 0m",
        1_762_207_200_000,
        "1762207200000",
        datetime(2025, 11, 3, 22),  # noqa: DTZ001
        datetime(2025, 11, 3, 23, tzinfo=BERLIN),
        {"date": {"year": 2025, "month": 11, "day": 3}, "time": {"hour": 22, "minute": 0, "second": 0, "nano": 0}},
        {"date": {"year": 2025, "month": 11, "day": 3}, "time": {"hour": 22, "minute": 0}},
    ],
)
def test_every_form_of_one_moment_is_read_as_the_same(value: object) -> None:
    assert parse(value) == NOW


@pytest.mark.parametrize(
    ("text", "later_ms"),
    [
        ("+90s", 90_000),
        ("in 5m", 300_000),
        ("in 1h30m", 5_400_000),
        ("IN  2d", 172_800_000),
        ("+200ms", 200),
        ("+5", 5_000),
    ],
)
def test_a_delay_counts_from_now(text: str, later_ms: int) -> None:
    assert parse(text) == NOW + later_ms


def test_a_date_alone_is_its_midnight_in_the_zone() -> None:
    assert parse("2025-11-03", BERLIN) == parse("2025-11-03T00:00:00+01:00")
    assert parse(date(2025, 11, 3), BERLIN) == parse("2025-11-02T23:00:00Z")


@pytest.mark.parametrize(
    ("fraction", "ms"),
    [("0", 0), ("5", 500), ("001", 1), ("0001", 1), ("123456789", 124), ("999000000", 999), ("9991", 1_000)],
)
def test_a_fraction_of_a_millisecond_is_rounded_up(fraction: str, ms: int) -> None:
    assert parse(f"2025-11-03T22:00:00.{fraction}Z") == NOW + ms
    fields = {
        "date": {"year": 2025, "month": 11, "day": 3},
        "time": {"hour": 22, "minute": 0, "second": 0, "nano": int(fraction.ljust(9, "0"))},
    }
    assert parse(fields) == NOW + ms


def test_a_time_that_the_clocks_skip_moves_forward_by_the_gap() -> None:
    assert parse("2025-03-30T02:30:00", BERLIN) == parse("2025-03-30T03:30:00+02:00")
    assert parse(datetime(2025, 3, 30, 2, 30, fold=1), BERLIN) == parse("2025-03-30T03:30:00+02:00")  # noqa: DTZ001


def test_a_time_that_comes_twice_is_the_first_unless_a_datetime_asks_for_the_second() -> None:
    assert parse("2025-10-26T02:30:00", BERLIN) == parse("2025-10-26T02:30:00+02:00")
    assert parse(datetime(2025, 10, 26, 2, 30), BERLIN) == parse("2025-10-26T02:30:00+02:00")  # noqa: DTZ001
    assert parse(datetime(2025, 10, 26, 2, 30, fold=1), BERLIN) == parse("2025-10-26T02:30:00+01:00")  # noqa: DTZ001


@given(MOMENTS, ZONES, st.sampled_from("T "), st.integers(-1_439, 1_439))
def test_a_moment_with_an_offset_comes_back_exactly(ms: int, zone: ZoneInfo, between: str, offset: int) -> None:
    aware = datetime_of(ms).astimezone(timezone(timedelta(minutes=offset)))
    assert parse(aware, zone) == ms
    assert parse(aware.isoformat(between, timespec="milliseconds"), zone) == ms
    assert parse(datetime_of(ms).isoformat(between).replace("+00:00", "Z"), zone) == ms


@given(MOMENTS, ZONES)
def test_a_moment_written_in_the_zone_comes_back_or_is_the_first_of_two(ms: int, zone: ZoneInfo) -> None:
    local = datetime_of(ms).astimezone(zone)
    first = parse(local.replace(fold=0))
    naive = local.replace(tzinfo=None)
    assert parse(naive, zone) == ms
    assert parse(naive.isoformat(), zone) == first
    assert first == ms or (local.fold == 1 and 0 < ms - first <= 7_200_000)
    fields = {
        "date": {"year": local.year, "month": local.month, "day": local.day},
        "time": {
            "hour": local.hour,
            "minute": local.minute,
            "second": local.second,
            "nano": local.microsecond * 1_000,
        },
    }
    assert parse(fields, zone) == first


@given(st.datetimes(datetime(1971, 1, 1)), ZONES)  # noqa: DTZ001
def test_a_naive_datetime_never_becomes_a_moment_before_it(naive: datetime, zone: ZoneInfo) -> None:
    read = datetime_of(parse(naive, zone)).astimezone(zone).replace(tzinfo=None)
    assert naive <= read
    assert read - naive < timedelta(hours=2)


@given(st.integers(10**11, MAX_DUE_MS))
def test_epoch_milliseconds_are_taken_as_they_are(ms: int) -> None:
    assert parse(ms) == ms
    assert parse(str(ms)) == ms


@pytest.mark.parametrize(
    "value",
    [
        -1,
        MAX_DUE_MS + 1,
        str(MAX_DUE_MS + 1),
        HUGE,
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:30:00+01:00",
        "+2925000d",
    ],
)
def test_a_moment_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(InvalidTime, match="out of range"):
        parse(value)


@pytest.mark.parametrize("value", [0, 1_794_741_355, "1794741355", "20300131", 20_300_131, 10**11 - 1])
def test_seconds_and_dates_without_dashes_are_refused_since_they_would_fire_at_once(value: object) -> None:
    with pytest.raises(InvalidTime, match="in seconds, append 000"):
        parse(value)


def test_the_first_and_the_last_moment_are_accepted() -> None:
    assert parse("1970-01-01T00:00:00Z") == 0
    assert parse(MAX_DUE_MS) == MAX_DUE_MS


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "tomorrow",
        "5m",
        "90s",
        "in",
        "in ",
        "+",
        "+-5s",
        "in 5x",
        "2025-11-03T22:00:00.",
        "2025-11-03T22.5",
        "2025-11-03Z",
        "2025-11-03T22:00:00+25:00",
        "2025-11-03T22:00:00+02:",
        "2025-11-03T22:00:00+01:60",
        "2025-13-03T22:00:00",
        "2025-02-29T00:00:00",
        "2025-11-03T24:00:00",
        "2025-11-03T22:00:60",
        "0000-01-01T00:00:00",
        "\N{ARABIC-INDIC DIGIT TWO}025-11-03T22:00:00",
        "\N{FULLWIDTH DIGIT ONE}7622072",
        DIGITS,
        BLANKS,
        "1.5",
        "1e12",
        "0x10",
        "2025-11-03T22:00:00[Europe/Berlin]",
        True,
        False,
        None,
        1.5,
        float("nan"),
        b"now",
        [],
        {},
        object(),
        {"date": {"year": 2025, "month": 11, "day": 3}},
        {"date": 5, "time": 6},
        {"date": {"year": 2025, "month": 11, "day": 3}, "time": {"hour": 22}},
        {"date": {"year": 2025, "month": 11, "day": 31}, "time": {"hour": 22, "minute": 0}},
        {"date": {"year": 2025, "month": 11, "day": 3}, "time": {"hour": 22.0, "minute": 0}},
        {"date": {"year": 2025, "month": 11, "day": 3}, "time": {"hour": True, "minute": 0}},
        {"date": {"year": 10**5_000, "month": 11, "day": 3}, "time": {"hour": 22, "minute": 0}},
        {"date": {"year": 2025, "month": 11, "day": 3}, "time": {"hour": 22, "minute": 0, "nano": 10**9}},
        {"date": {"year": 2025, "month": 11, "day": 3}, "time": {"hour": 22, "minute": 0, "nano": -1}},
    ],
)
def test_what_cannot_be_read_is_refused_shortly(value: object) -> None:
    with pytest.raises(InvalidTime) as refused:
        parse(value)
    assert len(str(refused.value)) < 300


def test_a_refusal_shows_what_was_given_and_what_is_accepted() -> None:
    with pytest.raises(
        InvalidTime, match=r"'tomorrow' is not a time; expected 2025-11-03T22:00:00 .* '\+90s', .* epoch"
    ):
        parse("tomorrow")
    with pytest.raises(InvalidTime, match=r"time.minute of the time is None; expected a whole number"):
        parse({"date": {"year": 2025, "month": 11, "day": 3}, "time": {"hour": 22}})
    with pytest.raises(InvalidTime, match="a delay cannot be negative: '-90s'"):
        parse("-90s")


@given(st.text() | st.text("0123456789-+:.,TZin wdhms", max_size=30), ZONES)
@example("+ 5s", UTC_ZONE)
def test_any_text_is_read_or_refused_as_an_invalid_time(text: str, zone: ZoneInfo) -> None:
    with suppress(InvalidTime):
        assert 0 <= parse(text, zone) <= MAX_DUE_MS
    with suppress(InvalidTime):
        assert 0 <= parse_duration(text) <= MAX_DUE_MS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("date", "time", "year")), inner),
)
FIELDS = st.fixed_dictionaries(
    {
        "date": st.fixed_dictionaries({name: JSON | st.integers(-1, 2_100) for name in ("year", "month", "day")}),
        "time": st.fixed_dictionaries(
            {name: JSON | st.integers(-1, 61) for name in ("hour", "minute", "second", "nano")}
        ),
    }
)


@given(JSON | FIELDS)
def test_any_json_is_read_or_refused_as_an_invalid_time(value: Any) -> None:
    for read in (parse, parse_duration):
        with suppress(InvalidTime):
            assert 0 <= read(value) <= MAX_DUE_MS


@given(st.datetimes(timezones=st.none() | ZONES))
def test_any_datetime_is_read_or_refused_as_an_invalid_time(value: datetime) -> None:
    try:
        ms = parse(value, BERLIN)
    except InvalidTime:
        assert value.year <= 1970
    else:
        aware = value if value.tzinfo else value.replace(tzinfo=BERLIN)
        assert timedelta(0) <= datetime_of(ms) - aware.astimezone(UTC) < timedelta(milliseconds=1) or not value.tzinfo


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90s", 90_000),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("200ms", 200),
        ("2d", 172_800_000),
        ("1w", 604_800_000),
        ("90", 90_000),
        (90, 90_000),
        (0.1, 100),
        (1.0, 1_000),
        ("0.0001", 1),
        ("1.5h", 5_400_000),
        (" 1h 30 m ", 5_400_000),
        ("0s", 0),
        ("1m1ms", 60_001),
        (1 / 3, 334),
        (1e-05, 1),
        (timedelta(minutes=5), 300_000),
        (timedelta(microseconds=1), 1),
    ],
)
def test_a_delay_is_read(text: Delay, ms: int) -> None:
    assert parse_duration(text) == ms


@given(st.fixed_dictionaries({}, optional={unit: st.integers(0, 99_999) for unit in UNITS}).filter(bool))
def test_a_delay_is_the_sum_of_its_parts(parts: dict[str, int]) -> None:
    text = "".join(f"{parts[unit]}{unit}" for unit in UNITS if unit in parts)
    assert parse_duration(text) == sum(parts[unit] * UNITS[unit] for unit in parts)


@given(st.integers(0, 10**15))
def test_a_number_of_seconds_is_exact_to_the_millisecond(ms: int) -> None:
    if ms <= MAX_DUE_MS:
        assert parse_duration(f"{ms // 1000}.{ms % 1000:03}") == ms


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s",
        "5x",
        "30m1h",
        "1h1h",
        "1h30",
        "5M",
        "--5",
        "1_000",
        "1e3",
        True,
        None,
        [],
        float("nan"),
        float("inf"),
        HUGE,
        "9" * 60,
    ],
)
def test_what_is_no_delay_is_refused(value: object) -> None:
    with pytest.raises(InvalidTime):
        parse_duration(value)


@pytest.mark.parametrize("value", ["-5s", "-1", -1, -0.5, " -1h", -1e-05, timedelta(microseconds=-1)])
def test_a_negative_delay_is_refused_as_such(value: object) -> None:
    with pytest.raises(InvalidTime, match="a delay cannot be negative"):
        parse_duration(value)
