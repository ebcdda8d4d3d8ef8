"""The command that schedules: one job from its options, or many from a file."""

import asyncio
import json
import os
from collections.abc import Mapping

import msgspec

from infinite_scheduler.cli.bulk import Bulk, open_lines
from infinite_scheduler.cli.output import Output
from infinite_scheduler.cli.shared_options import SharedOptions
from infinite_scheduler.cli.store_exists import lack_of_store
from infinite_scheduler.cli.store_session import Intent, StoreSession, ask
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.config import Settings
from infinite_scheduler.errors import InvalidPayload, InvalidRequest, InvalidTime, UnknownApp
from infinite_scheduler.ingest.payload import check_payload
from infinite_scheduler.model import JobSpec, check_app_name
from infinite_scheduler.views.job import accepted_view
from infinite_scheduler.views.times import when


class ScheduleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the options."""

    app: str
    at: str | None = None
    delay: str | None = None
    data: str | None = None
    fields: Mapping[str, str | list[str] | None] = {}

    @property
    def given(self) -> list[str]:
        """The fields that are given."""
        own = {"at": self.at, "in": self.delay, "data": self.data, **self.fields}
        return [name for name, value in own.items() if value is not None]


def schedule_one(options: SharedOptions, job_options: ScheduleOptions, *, skip_bad: bool) -> int:
    """Schedule the job that the options describe."""
    if skip_bad:
        raise InvalidRequest("--skip-bad is for the lines of a file: use it with --from FILE")
    spec = _spec(job_options, options.settings())
    return ask(options, lambda session: _accept(session, spec), Intent.ADD, app=job_options.app)


def _spec(job_options: ScheduleOptions, settings: Settings) -> JobSpec:
    """The job as a file of one line, so that both are read in the same way."""
    if (job_options.at is None) == (job_options.delay is None):
        raise InvalidTime("give the time: either --at MOMENT or --in DELAY, or --from FILE for many jobs")
    data = b"null" if job_options.data is None else os.fsencode(job_options.data)
    try:
        check_payload(data, settings.limits.payload)
    except InvalidPayload as error:
        raise InvalidPayload(f"""--data: {error}; a text needs quotes of its own: --data '"hello"'""") from None
    fields = {name: value for name, value in job_options.fields.items() if value is not None}
    fields["at"] = f"in {job_options.delay}" if job_options.at is None else job_options.at
    line = json.dumps(fields).encode().removesuffix(b"}") + b', "data": ' + data + b"}"
    return Bulk(job_options.app, settings, SystemClock().wall_ms()).parse(line)


async def _accept(session: StoreSession, spec: JobSpec) -> None:
    accepted = (await session.client.submit([spec]))[0]
    if session.out.as_json:
        session.out.record(accepted_view(accepted))
        return
    what = "already known by its idempotency key:" if accepted.repeated else "scheduled"
    session.out.say(f"{what} {accepted.id} for {spec.app}, due {when(accepted.due_ms, session.now_ms)}")


def schedule_file(options: SharedOptions, job_options: ScheduleOptions, file: str, *, skip_bad: bool) -> int:
    """Schedule the jobs of a file: all of it is checked before the first one is accepted."""
    if job_options.given:
        raise InvalidRequest(
            f"--from takes all values from the lines of the file: leave out {', '.join(job_options.given)}"
        )
    check_app_name(job_options.app)
    settings = options.settings()
    if job_options.app not in settings.apps:
        ask(options, lambda session: _check_known(session, job_options.app))
    with open_lines(file) as lines:
        bulk = Bulk(job_options.app, settings, SystemClock().wall_ms())
        if lack_of_store(settings) is None:
            ask(options, lambda asked: bulk.check(lines, asked.out, skip_bad=skip_bad, client=asked.client))
        else:  # nor is it created for a file that is refused
            asyncio.run(bulk.check(lines, Output(as_json=options.as_json), skip_bad=skip_bad))
        return ask(
            options, lambda session: bulk.commit(session, lines, skip_bad=skip_bad), Intent.ADD, app=job_options.app
        )


async def _check_known(session: StoreSession, app: str) -> None:
    known = [info.name for info in (await session.client.survey()).view.apps]
    if app not in known:
        raise UnknownApp(app, known)
