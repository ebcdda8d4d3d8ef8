"""Files of jobs: what is read, what is refused, in how much memory."""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from infinite_scheduler.cli.bulk import BATCH, BATCH_BYTES, Bulk, InputLine, _batches, _lines
from infinite_scheduler.cli.output import Output
from infinite_scheduler.cli.store_session import StoreSession
from infinite_scheduler.config import load_settings
from infinite_scheduler.errors import InvalidRequest, KeyConflict, StoreUnavailable
from infinite_scheduler.model import Accepted, JobId, JobSpec

NOW = 1_893_456_000_000


def bulk() -> Bulk:
    return Bulk("sms", load_settings(environ={}, overrides={"limits.payload": "100B"}), NOW)


def read(text: str | bytes) -> list[InputLine]:
    return list(bulk()._read(io.BytesIO(text.encode() if isinstance(text, str) else text)))


def specs(lines: Iterable[InputLine]) -> list[JobSpec]:
    return [line.spec for line in lines if line.spec is not None]


def test_lines_keep_their_numbers_and_blank_ones_are_passed_over() -> None:
    found = read('\n{"at": "in 5m"}\n  \n{"at": "in 6m"}')
    assert [line.number for line in found] == [2, 4]
    assert [spec.scheduled_ms - NOW for spec in specs(found)] == [300_000, 360_000]


def test_a_delay_counts_from_the_same_moment_in_both_passes() -> None:
    jobs, file = bulk(), io.BytesIO(b'{"at": "in 5m"}\n{"at": "+90s"}')
    assert specs(jobs._read(file)) == specs(jobs._read(file))


async def test_every_bad_line_is_reported_and_the_file_refused(capsys: pytest.CaptureFixture[str]) -> None:
    file = io.BytesIO(b'{"at": "in 5m"}\nnonsense\n{"at": "whenever"}\n')
    with pytest.raises(InvalidRequest, match="2 bad lines among 3, so nothing was accepted"):
        await bulk().check(file, Output(as_json=False), skip_bad=False)
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in told] == ["line 2", "line 3"]


async def test_bad_lines_are_skipped_unless_there_are_only_bad_ones(capsys: pytest.CaptureFixture[str]) -> None:
    await bulk().check(io.BytesIO(b'{"at": "in 5m"}\nnonsense\n'), Output(as_json=True), skip_bad=True)
    assert '{"line": 2, "error": ' in capsys.readouterr().err
    with pytest.raises(InvalidRequest, match="1 bad line among 1"):
        await bulk().check(io.BytesIO(b"nonsense\n"), Output(as_json=True), skip_bad=True)


def test_a_key_may_come_again_for_the_same_job_only() -> None:
    found = read(
        '{"at": 1893456000000, "data": 1, "idempotency_key": "a"}\n'
        '{"at": 1893456000000, "data": 1, "idempotency_key": "a"}\n'
        '{"at": 1893456000000, "data": 2, "idempotency_key": "a"}\n'
    )
    assert [line.spec is not None for line in found] == [True, True, False]
    assert "line 1" in found[2].error


@pytest.mark.parametrize("text", [b'{"at": "now", "data": "%s"}' % (b"x" * 101), b"x" * 200_000, b"\xff\xfe", b"[1]"])
def test_a_line_that_is_no_job_is_refused_whatever_it_is(text: bytes) -> None:
    found = read(text + b'\n{"at": "now"}\n')
    assert [(line.number, line.spec is not None) for line in found] == [(1, False), (2, True)]


def test_a_line_that_is_too_long_is_never_held_in_memory() -> None:
    assert list(_lines(io.BytesIO(b"12345\n1234567890123\n1\n12345678"), 8)) == [
        (1, b"12345\n"),
        (2, None),
        (3, b"1\n"),
        (4, None),
    ]


def line(size: int) -> InputLine:
    return InputLine(1, JobSpec(app="sms", scheduled_ms=0, payload=bytes(size)))


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([1] * (2 * BATCH + 1), [BATCH, BATCH, 1]),
        ([BATCH_BYTES // 2] * 5, [2, 2, 1]),
        ([], []),
    ],
)
def test_batches_are_bounded_in_jobs_and_in_bytes(sizes: Sequence[int], batches: Sequence[int]) -> None:
    assert [len(batch) for batch in _batches(line(size) for size in sizes)] == batches


class Keyholder:
    """A client whose store holds the key "taken" for another job, and accepts what it is given."""

    def __init__(self) -> None:
        self.accepted: list[bytes] = []

    async def conflicts(self, specs: Sequence[JobSpec]) -> Mapping[int, KeyConflict]:
        held = (place for place, spec in enumerate(specs) if spec.idempotency_key == "taken")
        return {place: KeyConflict("sms", "taken", "another") for place in held}

    async def submit(self, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        self.accepted += [spec.payload for spec in specs]
        return [Accepted(bytes(JobId.make(NOW, 0, 1)), NOW) for _ in specs]


def held_in(count: int, held: int) -> io.BytesIO:
    """A file of so many lines; the store holds the key of one of them."""
    keys = ["taken" if number == held else str(number) for number in range(1, count + 1)]
    return io.BytesIO(
        "".join(f'{{"at": "now", "data": {n}, "idempotency_key": "{key}"}}\n' for n, key in enumerate(keys, 1)).encode()
    )


async def test_a_key_that_the_store_holds_is_found_before_anything_is_accepted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client: Any = Keyholder()
    with pytest.raises(InvalidRequest, match="1 bad line among 2,500, so nothing was accepted"):
        await bulk().check(held_in(2500, 2400), Output(as_json=True), skip_bad=False, client=client)
    told = json.loads(capsys.readouterr().err)
    assert (told["line"], "belongs to job another" in told["error"]) == (2400, True)


async def test_a_line_whose_key_the_store_holds_is_skipped_and_reported_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client, file, jobs, out = Keyholder(), held_in(2500, 1500), bulk(), Output(as_json=True)
    asked: Any = client
    await jobs.check(file, out, skip_bad=True, client=asked)
    await jobs.commit(StoreSession(asked, out, load_settings(environ={})), file, skip_bad=True)
    assert [json.loads(told)["line"] for told in capsys.readouterr().err.splitlines()] == [1500]
    assert client.accepted == [str(number).encode() for number in range(1, 2501) if number != 1500]


class Doorkeeper:
    """A client that answers as it is told: refuses batches, fails at the last job."""

    def __init__(self, *, refuses_batches: bool, fails_at: bytes) -> None:
        self.refuses_batches, self.fails_at = refuses_batches, fails_at

    async def submit(self, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        if self.refuses_batches and len(specs) > 1:
            raise KeyConflict("sms", "k", "another")
        if any(spec.payload == self.fails_at for spec in specs):
            raise StoreUnavailable("away")
        return [Accepted(bytes(JobId.make(NOW, 0, 1)), NOW) for _ in specs]


async def commit(client: Any, *, skip_bad: bool) -> None:
    file, jobs = io.BytesIO(b'{"at": "now", "data": 1}\n{"at": "now", "data": 2}\n{"at": "now", "data": 3}\n'), bulk()
    settings = load_settings(environ={})
    out = Output(as_json=True)
    await jobs.check(file, out, skip_bad=skip_bad)
    await jobs.commit(StoreSession(client, out, settings), file, skip_bad=skip_bad)


async def test_what_is_durable_is_answered_for_although_a_later_job_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StoreUnavailable):
        await commit(Doorkeeper(refuses_batches=True, fails_at=b"2"), skip_bad=True)
    told = capsys.readouterr()
    assert [json.loads(line)["line"] for line in told.out.splitlines()] == [1]
    assert json.loads(told.err) == {"accepted": 1, "last_line": 1, "in_doubt_up_to_line": 3}


async def test_a_batch_whose_answer_was_lost_is_in_doubt(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StoreUnavailable):
        await commit(Doorkeeper(refuses_batches=False, fails_at=b"3"), skip_bad=False)
    assert json.loads(capsys.readouterr().err) == {"accepted": 0, "last_line": 0, "in_doubt_up_to_line": 3}


async def test_a_batch_that_was_refused_is_not_in_doubt(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyConflict):
        await commit(Doorkeeper(refuses_batches=True, fails_at=b""), skip_bad=False)
    assert json.loads(capsys.readouterr().err) == {"accepted": 0, "last_line": 0, "in_doubt_up_to_line": None}


def test_a_file_that_changes_while_it_is_read_is_refused() -> None:
    jobs = bulk()
    with pytest.raises(InvalidRequest, match="line 4 has changed"):
        list(jobs._again(iter([InputLine(4, None, "bad")])))
