"""The commands about jobs with their arguments and options."""

# ruff: noqa: PLC0415 - `--help` and shell completion must not wait for settings, stores and tables to be imported

from typing import Annotated, Any

import typer

from infinite_scheduler.cli.arguments import At, In, JobIds, JobIdText, PreviewOnly, Yes
from infinite_scheduler.cli.job_filters import Filters, with_filters
from infinite_scheduler.cli.shared_options import SharedOptions, with_options

jobs = typer.Typer(help="Look at jobs, and change waiting ones.")


@jobs.callback(invoke_without_command=True)
def jobs_root(context: typer.Context) -> None:
    """Look at jobs, and change waiting ones."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@jobs.command("list")
@with_options
@with_filters
def jobs_list(
    options: SharedOptions,
    filters: Filters,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many at most.")] = 100,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Continue where a list with the same options ended, as it said.")
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="The latest times first.")] = False,
) -> int:
    """List jobs: pending ones by the time at which they are due, others by the one for which they were accepted."""
    from infinite_scheduler.cli.jobs import list_jobs
    from infinite_scheduler.cli.store_session import ask

    criteria = {**filters, "newest_first": newest}
    return ask(options, lambda session: list_jobs(session, criteria, limit, cursor))


@jobs.command("show")
@with_options
def jobs_show(options: SharedOptions, job: JobIdText) -> int:
    """Show everything about one job, including its failed attempts."""
    from infinite_scheduler.cli.jobs import show_job
    from infinite_scheduler.cli.store_session import ask

    return ask(options, lambda session: show_job(session, job))


@jobs.command("cancel")
@with_options
@with_filters
def jobs_cancel(
    options: SharedOptions, filters: Filters, job: JobIds = None, preview: PreviewOnly = False, yes: Yes = False
) -> int:
    """Cancel jobs, by their ids or all that match: after this they are never handed over. Too late ends with 4."""
    return _change("cancel", options, filters, job, preview=preview, yes=yes)


@jobs.command("reschedule")
@with_options
@with_filters
def jobs_reschedule(
    options: SharedOptions,
    filters: Filters,
    job: JobIds = None,
    at: At = None,
    delay: In = None,
    preview: PreviewOnly = False,
    yes: Yes = False,
) -> int:
    """Move waiting jobs to another time, by their ids or all that match."""
    return _change("reschedule", options, filters, job, preview=preview, yes=yes, at=at, delay=delay)


@jobs.command("run-now")
@with_options
@with_filters
def jobs_run_now(
    options: SharedOptions, filters: Filters, job: JobIds = None, preview: PreviewOnly = False, yes: Yes = False
) -> int:
    """Hand waiting jobs over at once, by their ids or all that match."""
    return _change("run_now", options, filters, job, preview=preview, yes=yes)


@jobs.command("retry")
@with_options
@with_filters
def jobs_retry(
    options: SharedOptions, filters: Filters, job: JobIds = None, preview: PreviewOnly = False, yes: Yes = False
) -> int:
    """Retry failed, expired or cancelled jobs, by their ids or all that match."""
    return _change("retry", options, filters, job, preview=preview, yes=yes)


def _change(
    verb: str, options: SharedOptions, filters: Filters, ids: list[str] | None, *, preview: bool, yes: bool, **time: Any
) -> int:
    from infinite_scheduler.cli.change_jobs import JobChange, change_by_filter, change_by_ids, check_choice
    from infinite_scheduler.cli.store_session import Intent, ask
    from infinite_scheduler.model import Change

    change = JobChange(Change(verb), **time)
    check_choice(change, ids or (), filters, preview=preview)
    if ids:
        return ask(options, lambda session: change_by_ids(session, change, ids), Intent.CHANGE)
    return ask(
        options,
        lambda session: change_by_filter(session, change, filters, preview=preview, yes=yes),
        Intent.LOOK if preview else Intent.CHANGE,
    )
