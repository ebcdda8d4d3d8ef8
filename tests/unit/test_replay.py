"""Dead letters that are tried again: read by the rules of today, at their own moment or at another."""

import json
from typing import Any, cast
from zoneinfo import ZoneInfo

import msgspec
import pytest

from infinite_scheduler.errors import InvalidPayload, InvalidRequest, InvalidTime
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.ingest.replay import Replayer
from infinite_scheduler.model import Accepted, JobSpec
from infinite_scheduler.store.inbox import DeadLetter, Inbox, LetterState, Source

AT_MS = 1_900_000_000_123
NINE_MS = 1_896_080_400_000  # 2030-01-31T09:00:00Z


class Shelf:
    """An inbox that keeps what is replayed."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, JobSpec]] = []

    async def replay(self, letter_id: str, spec: JobSpec) -> Accepted:
        self.taken.append((letter_id, spec))
        return Accepted(key=b"", due_ms=spec.scheduled_ms)


class App(Handler):
    """Takes messages that have a `when`, and looks at the data in a way that a test decides."""

    checks = True

    def __init__(self, check: Any = None) -> None:
        self._check = check

    def check(self, data: Any) -> None:
        if self._check:
            self._check(data)

    def adopt(self, message: Any) -> object | None:
        moment: object | None = message.get("when")
        return moment

    async def handle(self, jobs: Any, report: Any) -> Any:
        raise NotImplementedError


def letter(value: bytes | None, topic: str = "jobs", *, group: str = "g", cut_bytes: int = 0) -> DeadLetter:
    return DeadLetter(
        id="0" * 32,
        source=Source(group, topic, 0),
        offset=7,
        key=None,
        value=value,
        headers=(),
        error="it was bad",
        failed_ms=1,
        dlq_topic=None,
        state=LetterState.KEPT,
        cut_bytes=cut_bytes,
    )


async def replayed(value: bytes | None, at_ms: int | None = None, *, topic: str = "jobs", **apps: Handler) -> JobSpec:
    shelf = Shelf()
    zones = {("g", "local"): ZoneInfo("Asia/Dhaka")}
    replayer = Replayer(cast("Inbox", shelf), apps or {"sms": App()}, zone=ZoneInfo("UTC"), zones=zones)
    await replayer.replay(letter(value, topic), at_ms)
    ((letter_id, spec),) = shelf.taken
    assert letter_id == "0" * 32
    return spec


async def test_a_flat_letter_that_lacks_only_its_moment_can_be_given_one() -> None:
    class Sms(App):
        def adopt(self, message: Any) -> object | None:
            raise InvalidPayload("retryTime is required")

    spec = await replayed(b'{"campaignTaskId": 1}', AT_MS, sms=Sms())
    assert (spec.app, spec.scheduled_ms, spec.payload) == ("sms", AT_MS, b'{"campaignTaskId": 1}')


async def test_a_letter_that_has_become_good_is_accepted_for_its_own_moment() -> None:
    spec = await replayed(b'{"appName": "sms", "scheduledTime": "2030-01-31T09:00:00", "jobData": {"a":  1.50}}')
    assert (spec.app, spec.scheduled_ms, spec.payload) == ("sms", NINE_MS, b'{"a":  1.50}')


@pytest.mark.parametrize("zone", ["UTC", None])
async def test_a_letter_that_has_become_good_goes_on_with_its_trace(zone: str | None) -> None:
    shelf = Shelf()
    replayer = Replayer(cast("Inbox", shelf), {"sms": App()}, zone=None if zone is None else ZoneInfo(zone))
    header = ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    good = letter(b'{"appName": "sms", "scheduledTime": "2030-01-31T09:00:00Z"}')
    await replayer.replay(msgspec.structs.replace(good, headers=[header]))
    ((_, spec),) = shelf.taken
    assert spec.request_id == "4bf92f3577b34da6a3ce929d0e0e4736"


async def test_a_time_without_a_zone_is_read_in_the_zone_of_its_topic() -> None:
    value = b'{"appName": "sms", "scheduledTime": "2030-01-31T09:00:00"}'
    assert (await replayed(value, topic="local")).scheduled_ms == NINE_MS - 6 * 3_600_000


@pytest.mark.parametrize(
    ("group", "topic", "zone", "due_ms"),
    [
        ("g", "local", None, NINE_MS - 6 * 3_600_000),
        ("g", "local", "UTC", NINE_MS - 6 * 3_600_000),
        ("other", "local", "UTC", NINE_MS),
        ("other", "local", None, None),
        ("g", "jobs", None, None),
    ],
)
async def test_a_time_without_a_zone_needs_the_one_of_its_group_and_topic(
    group: str, topic: str, zone: str | None, due_ms: int | None
) -> None:
    shelf = Shelf()
    zones = {("g", "local"): ZoneInfo("Asia/Dhaka")}
    own = None if zone is None else ZoneInfo(zone)
    replayer = Replayer(cast("Inbox", shelf), {"sms": App()}, zone=own, zones=zones)
    bare, zoned = (b'{"appName": "sms", "scheduledTime": "2030-01-31T09:00:00%b"}' % end for end in (b"", b"Z"))
    assert (await replayer.replay(letter(zoned, topic, group=group))).due_ms == NINE_MS
    if due_ms is not None:
        assert (await replayer.replay(letter(bare, topic, group=group))).due_ms == due_ms
        return
    with pytest.raises(InvalidTime, match=f"no topic '{topic}' that is read by group '{group}': give the zone with"):
        await replayer.replay(letter(bare, topic, group=group))
    assert (await replayer.replay(letter(bare, topic, group=group), AT_MS)).due_ms == AT_MS
    assert len(shelf.taken) == 2


@pytest.mark.parametrize("at_ms", [None, AT_MS])
async def test_a_letter_that_was_cut_says_where_the_message_is(at_ms: int | None) -> None:
    shelf = Shelf()
    replayer = Replayer(cast("Inbox", shelf), {"sms": App()}, zone=ZoneInfo("UTC"))
    cut = letter(b'{"appName": "sms", "scheduledTime": "2030-01-31T09:00:00", "jobDa', cut_bytes=1234)
    with pytest.raises(InvalidRequest, match=r"not take 1,234 bytes .* at offset 7 of partition 0 of topic 'jobs'"):
        await replayer.replay(cut, at_ms)
    assert not shelf.taken


@pytest.mark.parametrize("time", ['"tomorrow"', '"2020-01-01T00:00:00"', "null", "[]", None])
async def test_another_moment_counts_whatever_the_message_says(time: str | None) -> None:
    own = "" if time is None else f'"scheduledTime": {time}, '
    value = f'{{"appName": "sms", {own}"jobData": {{"n": 9007199254740993,"z":1E2}}}}'
    spec = await replayed(value.encode(), AT_MS)
    assert (spec.scheduled_ms, spec.payload) == (AT_MS, b'{"n": 9007199254740993,"z":1E2}')


async def test_another_moment_counts_for_a_message_without_an_envelope_too() -> None:
    value = b' {"when": "soon", "n": 9007199254740993} '
    with pytest.raises(InvalidRequest, match="soon"):
        await replayed(value)
    spec = await replayed(value, AT_MS)
    assert (spec.app, spec.scheduled_ms, spec.payload) == ("sms", AT_MS, value.strip())


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "has no value"),
        (b"not json", "not valid JSON"),
        (b"\xff", "JSON"),
        (b"[1]", "not an object"),
        (b"[" * 100_000, "nested too deeply|not valid JSON|not an object"),
        (b'{"appName": "sms", "scheduledTime": "2030-01-31T09:00:00", "jobData": 7}', "jobData is not an object"),
        (b'{"what": "is this"}', "appName is required"),
        (b'{"scheduledTime": "2030-01-31T09:00:00"}', "appName is required"),
    ],
)
@pytest.mark.parametrize("at_ms", [None, AT_MS])
async def test_what_is_still_bad_says_why_and_is_not_accepted(value: bytes | None, why: str, at_ms: int | None) -> None:
    with pytest.raises(InvalidRequest, match=why):
        await replayed(value, at_ms)


async def test_two_apps_that_could_take_it_are_named() -> None:
    with pytest.raises(InvalidRequest, match="mail, sms could all take this message"):
        await replayed(b'{"when": "2030-01-31T09:00:00"}', AT_MS, sms=App(), mail=App())


async def test_the_handler_of_today_has_its_say() -> None:
    def refuse(data: Any) -> None:
        raise InvalidPayload(f"no {sorted(data)}")

    value = json.dumps({"appName": "sms", "scheduledTime": AT_MS, "jobData": {"x": 1}}).encode()
    with pytest.raises(InvalidPayload, match="x"):
        await replayed(value, sms=App(refuse))


async def test_a_handler_that_cannot_look_is_told_of() -> None:
    def stumble(data: Any) -> None:
        raise ConnectionError("the directory is away")

    value = json.dumps({"appName": "sms", "scheduledTime": AT_MS}).encode()
    with pytest.raises(InvalidRequest, match="could not check it: ConnectionError: the directory is away"):
        await replayed(value, sms=App(stumble))
