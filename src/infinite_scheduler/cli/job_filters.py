"""The options that choose jobs: those of `jobs list`, and of every command that changes many jobs."""

# ruff: noqa: PLC0415 - completions are looked up when a shell asks for them

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, Concatenate, Final, ParamSpec

import typer

from infinite_scheduler.cli.arguments import AppOption
from infinite_scheduler.cli.shared_options import SharedOptions

P = ParamSpec("P")
Filters = Mapping[str, Any]
"""What was given, by the names that `Client.find` has for it."""


def _statuses() -> list[str]:
    from infinite_scheduler.model import Status

    return list(Status)


def _text(flag: str, words: str, metavar: str | None = None) -> Any:
    return Annotated[str | None, typer.Option(flag, metavar=metavar, help=words)]


OPTIONS: Final[Mapping[str, Any]] = {
    "app": AppOption,
    "status": Annotated[
        str | None,
        typer.Option(
            "--status", help="Only jobs that are pending, done, failed, expired or cancelled.", autocompletion=_statuses
        ),
    ],
    "start": _text("--from", "Only jobs of this time or later.", "MOMENT"),
    "end": _text("--to", "Only jobs of a time before this.", "MOMENT"),
    "tag": _text("--tag", "Only jobs with this tag."),
    "job_name": _text("--name", "Only jobs with this name."),
    "group": _text("--group", "Only jobs of this group."),
    "request_id": _text("--request-id", "Only jobs of this request."),
    "idempotency_key": _text("--key", "Only the job with this idempotency key."),
    "error": _text("--error", "Only jobs whose last error contains this text.", "TEXT"),
}


def with_filters(
    function: Callable[Concatenate[SharedOptions, Filters, P], int],
) -> Callable[Concatenate[SharedOptions, P], int]:
    """Add the options to a command; it receives those that were given as one mapping."""

    @wraps(function)
    def command(options: SharedOptions, **given: Any) -> int:
        filters = {name: value for name in OPTIONS if (value := given.pop(name)) is not None}
        return function(options, filters, **given)  # type: ignore[call-arg]

    first, _, *own = inspect.signature(function, eval_str=True).parameters.values()
    chosen = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in OPTIONS.items()
    ]
    command.__signature__ = inspect.Signature([first, *own, *chosen], return_annotation=int)  # type: ignore[attr-defined]
    return command  # type: ignore[return-value]
