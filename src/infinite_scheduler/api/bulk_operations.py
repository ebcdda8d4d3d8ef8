"""The operation that accepts many jobs: a list or a stream of them."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.job_operations import ACCEPT_ERRORS
from infinite_scheduler.api.job_request import JobRequest, job_spec
from infinite_scheduler.api.json_text import Scanned, check_names, decode, scan, text_of
from infinite_scheduler.api.operation import JSON, NDJSON, ApiRequest, Operation, Subject
from infinite_scheduler.api.problem import Problem, problem_of, problem_of_refusal
from infinite_scheduler.api.refusal import LARGE_BODY, MALFORMED, Refusal
from infinite_scheduler.errors import InvalidRequest, KeyConflict, NotSupported, SchedulerError, UnknownApp
from infinite_scheduler.model import JobSpec
from infinite_scheduler.store.ledger import Role

AT_ONCE: Final = 500
"""Jobs that are decoded before the event loop has a turn: hand-overs must not wait for a long body."""

_decoder: Final = msgspec.json.Decoder(JobRequest)
_SPACE: Final = " \t\r\n"


class BulkOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a list of jobs is accepted."""

    all_or_none: Annotated[
        bool, Meta(description="Accept all jobs or none. Otherwise the good ones are accepted although others are bad.")
    ] = False


class BulkItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one job of a list: it has an id, or an error."""

    id: str | None = None
    due_ms: int | None = None
    repeated: bool = False
    error: Problem | None = None


class BulkAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each job, in the order of the request; those without an error are durable."""

    accepted: int
    refused: int
    results: Sequence[BulkItem]


Parsed = list[JobSpec | Problem]
"""The jobs of a body in order, each good or with what is wrong with it."""


async def schedule_jobs(api: ApiContext, request: ApiRequest) -> BulkAnswer:
    """Accept the good jobs of a list in one transaction."""
    options: BulkOptions = request.query
    parsed = await _parse(api, request)
    specs = [one for one in parsed if not isinstance(one, Problem)]
    api.check_room(len(specs), sum(len(spec.payload) for spec in specs))
    if options.all_or_none:
        _refuse_if_any_is_bad(parsed)
        answers = iter(await api.client.submit(specs))
        return _answer([BulkItem(id=one.id, due_ms=one.due_ms, repeated=one.repeated) for one in answers])
    return _answer(await _accept_good(api, parsed))


async def _parse(api: ApiContext, request: ApiRequest) -> Parsed:
    """Read the jobs, some at a time. What is wrong with the list as a whole refuses all of it."""
    text, now_ms = text_of(request.body), api.now_ms
    parsed: Parsed = []
    as_lines = request.body_type == NDJSON
    for item, scanned in _lines(text) if as_lines else _items(text):
        if len(parsed) >= api.limits.batch:
            raise Refusal(
                LARGE_BODY,
                f"the body has more than {api.limits.batch:,} jobs (limits.batch), and none was accepted: split it",
            )
        parsed.append(_spec_or_problem(api, item, scanned, now_ms))
        if len(parsed) % AT_ONCE == 0:
            await asyncio.sleep(0)
    return parsed


def _spec_or_problem(api: ApiContext, item: str, scanned: Scanned | None, now_ms: int) -> JobSpec | Problem:
    try:
        job: JobRequest = decode(item, _decoder)
        check_names((scanned or scan(item)).repeated)
        return job_spec(api, job, now_ms)
    except SchedulerError as error:
        return problem_of(error)
    except Refusal as refusal:
        return problem_of_refusal(refusal)


def _lines(text: str) -> Iterator[tuple[str, Scanned | None]]:
    """The lines of NDJSON; empty ones count for nothing. A line that is not JSON is refused alone."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        line = text[start:end].strip()
        if line:
            yield line, None
        start = end + 1


def _items(text: str) -> Iterator[tuple[str, Scanned | None]]:
    """The items of a JSON array, one after the other, without decoding what comes behind them."""
    place = _skipped(text, 0)
    if text[place : place + 1] != "[":
        raise Refusal(
            MALFORMED, f"the body is not an array: send [JOB, …], or one job per line with Content-Type: {NDJSON}"
        )
    place = _skipped(text, place + 1)
    while text[place : place + 1] != "]":
        scanned = scan(text, place)
        yield text[place : scanned.end], scanned
        place = _skipped(text, scanned.end)
        if text[place : place + 1] == ",":
            place = _skipped(text, place + 1)
            if text[place : place + 1] != "]":
                continue
        elif text[place : place + 1] == "]":
            break
        raise Refusal(MALFORMED, f"the body is not JSON: expected , or ] after an item, at character {place}")
    if _skipped(text, place + 1) < len(text):
        raise Refusal(MALFORMED, f"the body is not JSON: something follows its array, at character {place + 1}")


def _skipped(text: str, place: int) -> int:
    while place < len(text) and text[place] in _SPACE:
        place += 1
    return place


def _refuse_if_any_is_bad(parsed: Parsed) -> None:
    bad = [(place, one) for place, one in enumerate(parsed) if isinstance(one, Problem)]
    if bad:
        place, problem = bad[0]
        raise InvalidRequest(
            f"{len(bad):,} of {len(parsed):,} jobs are bad, so none was accepted; the first is job {place} (from 0): "
            f"{problem.detail}"
        )


async def _accept_good(api: ApiContext, parsed: Parsed) -> Sequence[BulkItem]:
    """Accept all that the store takes, in one transaction; what it refuses is taken out, and the rest tried again."""
    items: list[BulkItem | None] = [BulkItem(error=one) if isinstance(one, Problem) else None for one in parsed]
    left = {place: one for place, one in enumerate(parsed) if not isinstance(one, Problem)}
    while left:
        places, specs = list(left), list(left.values())
        try:
            answers = await api.client.submit(specs)
        except (UnknownApp, KeyConflict, NotSupported) as error:
            refused = await _refused(api, left, error)
            if not refused:
                raise
            for place, reason in refused.items():
                items[place] = BulkItem(error=problem_of(reason))
                del left[place]
        else:
            for place, one in zip(places, answers, strict=True):
                items[place] = BulkItem(id=one.id, due_ms=one.due_ms, repeated=one.repeated)
            break
    return [item for item in items if item is not None]


async def _refused(api: ApiContext, left: Mapping[int, JobSpec], error: SchedulerError) -> Mapping[int, SchedulerError]:
    """Which of these jobs the store has refused, and why."""
    if isinstance(error, UnknownApp):
        return {place: error for place, spec in left.items() if spec.app == error.app}
    if not isinstance(error, KeyConflict):
        return {}
    places = list(left)
    found = {places[number]: reason for number, reason in (await api.client.conflicts(list(left.values()))).items()}
    if found:
        return found
    same = [
        place for place, spec in left.items() if spec.app == error.app and spec.idempotency_key == error.key
    ]  # two jobs of this very list
    return dict.fromkeys(same[1:] or same, error)


def _answer(items: Sequence[BulkItem]) -> BulkAnswer:
    refused = sum(item.error is not None for item in items)
    return BulkAnswer(accepted=len(items) - refused, refused=refused, results=items)


BULK_OPERATIONS = (
    Operation(
        name="scheduleJobs",
        subject=Subject.MANY_JOBS,
        method="POST",
        path="/v1/jobs/bulk",
        summary=(
            "Schedule many jobs: a JSON array, or one JSON object per line. One result per job in their order; what "
            "is accepted is one transaction."
        ),
        role=Role.SUBMIT,
        call=schedule_jobs,
        query=BulkOptions,
        body=Sequence[JobRequest],
        raw_body=True,
        body_types=(JSON, NDJSON),
        answer=BulkAnswer,
        errors=ACCEPT_ERRORS,
    ),
)
