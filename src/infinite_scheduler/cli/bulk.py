"""Many jobs from a file: read twice, first to check every line, then to schedule, with little memory at any size."""

import json
import shutil
import sqlite3
import sys
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, NamedTuple
from zoneinfo import ZoneInfo

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from infinite_scheduler.cli.output import Output, console
from infinite_scheduler.cli.store_session import StoreSession
from infinite_scheduler.client import Client
from infinite_scheduler.config import Settings
from infinite_scheduler.errors import InvalidRequest, KeyConflict
from infinite_scheduler.ingest.request import parse_line
from infinite_scheduler.model import Accepted, JobSpec
from infinite_scheduler.views.times import iso

BATCH: Final = 1000
"""Jobs in one transaction."""

BATCH_BYTES: Final = 4 * 1024 * 1024
"""Their payloads together, about."""

SPOOLED: Final = 8 * 1024 * 1024
"""Piped input stays in memory up to this size, then it goes to a temporary file."""

OVERHEAD: Final = 64 * 1024
"""How much longer than its data a line may be."""


class InputLine(NamedTuple):
    """One line of the file: a job, or what is wrong with it."""

    number: int
    spec: JobSpec | None
    error: str = ""


AnsweredLines = Sequence[tuple[InputLine, Accepted]]
"""Jobs that are durable, each with its line."""


class Bulk:
    """The jobs of one file for one app; a delay such as "in 5m" counts from the same moment in both passes."""

    def __init__(self, app: str, settings: Settings, now_ms: int) -> None:
        self._app = app
        self._now_ms = now_ms
        self._zone = ZoneInfo(settings.time.zone)
        self._max_payload = settings.limits.payload
        self._good = 0
        self._bad = array("Q")  # the numbers of bad lines, in order

    def parse(self, line: bytes) -> JobSpec:
        """The job in one line."""
        return parse_line(line, app=self._app, now_ms=self._now_ms, zone=self._zone, max_payload=self._max_payload)

    async def check(self, lines: IO[bytes], out: Output, *, skip_bad: bool, client: Client | None = None) -> None:
        """The first pass: report every bad line, and refuse the file unless bad lines are to be skipped.

        A line is also bad if its idempotency key belongs to another job in the store; without a client there is no
        store yet.
        """
        for batch in _batches(_shown(self._read(lines), lines, "checking")):
            for line in batch if client is None else await _looked_up(client, batch):
                if line.spec is not None:
                    self._good += 1
                else:
                    self._bad.append(line.number)
                    _report(out, line.number, line.error)
        if self._bad and not (skip_bad and self._good):
            advice = "correct them" if skip_bad else "correct them, or use --skip-bad"
            bad, every = len(self._bad), self._good + len(self._bad)
            raise InvalidRequest(f"{_count(bad, 'bad line')} among {every:,}, so nothing was accepted: {advice}")

    async def commit(self, session: StoreSession, lines: IO[bytes], *, skip_bad: bool) -> None:
        """The second pass: schedule in batches, each durable before its answers are printed."""
        tally = _Tally()
        try:
            for batch in _batches(self._again(_shown(self._read(lines), lines, "scheduling"))):
                tally.sent_line = batch[-1].number
                async for accepted in self._submit(session, batch, skip_bad=skip_bad):
                    tally.add(accepted)
                    if session.out.as_json:
                        _answer(session.out, accepted)
        except BaseException as error:
            _report_stop(session.out, tally, certain=isinstance(error, InvalidRequest))
            raise
        if not session.out.as_json:
            session.out.say(tally.sentence(self._app))

    def _again(self, lines: Iterator[InputLine]) -> Iterator[InputLine]:
        """The good lines; the first pass has reported the bad ones."""
        for line in lines:
            if self._was_bad(line.number):
                continue
            if line.spec is None:
                raise InvalidRequest(f"line {line.number} has changed while the file was read: {line.error}")
            yield line

    def _was_bad(self, number: int) -> bool:
        place = bisect_left(self._bad, number)
        return place < len(self._bad) and self._bad[place] == number

    async def _submit(
        self, session: StoreSession, batch: Sequence[InputLine], *, skip_bad: bool
    ) -> AsyncIterator[AnsweredLines]:
        """Accept a batch, all or none of it; if bad lines are skipped, one by one after the store refused one of them.

        It refuses only what has changed since the first pass: another process has taken an idempotency key. Each answer
        is returned as soon as it is durable, so that none is lost if a later one fails.
        """
        specs = [line.spec for line in batch if line.spec is not None]
        try:
            accepted = await session.client.submit(specs)
        except KeyConflict as error:
            if not skip_bad:
                raise
            if len(batch) == 1:
                _report(session.out, batch[0].number, str(error))
                return
        else:
            yield list(zip(batch, accepted, strict=True))
            return
        for line in batch:
            async for answer in self._submit(session, [line], skip_bad=True):
                yield answer

    def _read(self, lines: IO[bytes]) -> Iterator[InputLine]:
        lines.seek(0)
        with _Keys() as keys:
            for number, text in _lines(lines, 8 * self._max_payload + OVERHEAD):
                if text is None:
                    yield InputLine(number, None, "the line is too long")
                    continue
                if text.isspace():
                    continue
                try:
                    spec = self.parse(text)
                    keys.add(spec, number)
                except InvalidRequest as error:
                    yield InputLine(number, None, str(error))
                else:
                    yield InputLine(number, spec)


class _Tally:
    """What has been accepted so far."""

    def __init__(self) -> None:
        self.accepted = self.repeated = 0
        self.last_line = 0  # the last one that was accepted
        self.sent_line = 0  # the last one that was sent to the store
        self.first_ms: int | None = None
        self.last_ms: int | None = None

    def add(self, answers: AnsweredLines) -> None:
        if not answers:
            return
        self.accepted += len(answers)
        self.repeated += sum(job.repeated for _, job in answers)
        self.last_line = answers[-1][0].number
        moments = [job.due_ms for _, job in answers]
        self.first_ms = min(moments) if self.first_ms is None else min(self.first_ms, *moments)
        self.last_ms = max(moments) if self.last_ms is None else max(self.last_ms, *moments)

    def sentence(self, app: str) -> str:
        if self.first_ms is None or self.last_ms is None:
            return f"nothing to schedule for {app}: the file has no jobs"
        known = f" ({self.repeated:,} already known by their idempotency keys)" if self.repeated else ""
        moments = f"due from {iso(self.first_ms)} to {iso(self.last_ms)}"
        return f"scheduled {_count(self.accepted, 'job')}{known} for {app}, {moments}"


class _Keys:
    """The idempotency keys of a file: one that occurs twice must mean one job. On disk, since there may be millions."""

    def __enter__(self) -> "_Keys":
        self._database = sqlite3.connect("", isolation_level=None)  # a temporary file that SQLite removes
        self._database.execute("CREATE TABLE keys (key TEXT PRIMARY KEY, digest BLOB, line INTEGER) WITHOUT ROWID")
        self._database.execute("BEGIN")
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add(self, spec: JobSpec, number: int) -> None:
        """Remember the key of a job, or refuse one that is used for another job."""
        key = spec.idempotency_key
        if key is None:
            return
        row = (key, spec.digest, number)
        if self._database.execute("INSERT OR IGNORE INTO keys VALUES (?, ?, ?)", row).rowcount:
            return
        first, line = self._database.execute("SELECT digest, line FROM keys WHERE key = ?", (key,)).fetchone()
        if first != spec.digest:
            raise InvalidRequest(
                f"idempotency key {key!r} is used with another time or data in line {line}: use a new key"
            )


@contextmanager
def open_lines(file: str) -> Iterator[IO[bytes]]:
    """The file, or standard input for "-", in a form that can be read twice."""
    if file == "-":
        with _spooled(sys.stdin.buffer) as spooled:
            yield spooled
        return
    with _opened(file) as source:
        if source.seekable():
            yield source
        else:
            with _spooled(source) as spooled:
                yield spooled


def _opened(file: str) -> IO[bytes]:
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise InvalidRequest(f"the file {file} cannot be read: {error.strerror}") from None


@contextmanager
def _spooled(source: IO[bytes]) -> Iterator[IO[bytes]]:
    with tempfile.SpooledTemporaryFile(max_size=SPOOLED) as spooled:
        shutil.copyfileobj(source, spooled)
        yield spooled


def _lines(file: IO[bytes], longest: int) -> Iterator[tuple[int, bytes | None]]:
    """The lines with their numbers; None for one that is too long for memory."""
    number = 0
    while line := file.readline(longest):
        number += 1
        whole = len(line) < longest or line.endswith(b"\n")
        yield number, line if whole else None
        while not whole and (rest := file.readline(longest)):
            whole = rest.endswith(b"\n")


async def _looked_up(client: Client, batch: Sequence[InputLine]) -> Sequence[InputLine]:
    """The lines, with an error if the idempotency key belongs to another job in the store."""
    good = [line for line in batch if line.spec is not None]
    conflicts = await client.conflicts([line.spec for line in good if line.spec is not None])
    refused = {good[place].number: str(error) for place, error in conflicts.items()}
    return [InputLine(line.number, None, refused[line.number]) if line.number in refused else line for line in batch]


def _batches(lines: Iterator[InputLine]) -> Iterator[Sequence[InputLine]]:
    batch: list[InputLine] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line.spec.payload) if line.spec else 0
        if len(batch) == BATCH or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _shown(lines: Iterator[InputLine], file: IO[bytes], what: str) -> Iterator[InputLine]:
    """The lines, with a progress bar on a terminal."""
    if not sys.stderr.isatty():
        yield from lines
        return
    end = file.seek(0, 2)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=end)
        for count, line in enumerate(lines):
            if count % BATCH == 0:
                progress.update(task, completed=file.tell())
            yield line


def _report(out: Output, number: int, error: str) -> None:
    if out.as_json:
        print(json.dumps({"line": number, "error": error}), file=sys.stderr)
    else:
        out.note(f"line {number}: {error}", style="red")


def _answer(out: Output, accepted: AnsweredLines) -> None:
    for line, job in accepted:
        out.record({"line": line.number, "id": job.id, "due_ms": job.due_ms, "repeated": job.repeated})


def _report_stop(out: Output, tally: _Tally, *, certain: bool) -> None:
    """Say what was accepted before an error. Unless the store refused it, its last answer may have been lost."""
    doubt = tally.sent_line if tally.sent_line > tally.last_line and not certain else None
    if out.as_json:
        told = {"accepted": tally.accepted, "last_line": tally.last_line, "in_doubt_up_to_line": doubt}
        print(json.dumps(told), file=sys.stderr)
        return
    text = f"stopped: {_count(tally.accepted, 'job')} accepted, up to line {tally.last_line}"
    out.note(f"{text}; the lines after it, up to line {doubt}, may have been accepted too" if doubt else text)


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
