"""Which store a command uses and how it answers: the options that every command has."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NamedTuple, ParamSpec

import typer

if TYPE_CHECKING:
    from infinite_scheduler.config import Settings

P = ParamSpec("P")


class SharedOptions(NamedTuple):
    """The values of the shared options."""

    config: Path | None
    store: str | None
    as_json: bool

    def settings(self, overrides: Mapping[str, Any] | None = None) -> "Settings":
        """The settings of the file and the environment, overridden by the store's URL and a command's own options."""
        from infinite_scheduler.config import load_settings  # noqa: PLC0415 - pydantic is loaded when a command runs

        return load_settings(self.config, {"store.url": self.store, **(overrides or {})})


def with_options(function: Callable[Concatenate[SharedOptions, P], int]) -> Callable[..., int]:
    """Add the shared options to a command; it receives them as one `SharedOptions`."""

    @wraps(function)
    def command(*, config: Path | None, store: str | None, json: bool, debug: bool, **own: Any) -> int:
        del debug  # the error report looks for it among the arguments, since it may come after a mistake
        return function(SharedOptions(config, store, json), **own)  # type: ignore[call-arg]

    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    parameters = [*own, *_SHARED]
    command.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _option(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line; errors too.")]
Debug = Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")]

_SHARED = (
    _option(
        "config",
        Annotated[
            Path | None,
            typer.Option(
                "--config",
                metavar="FILE",
                envvar="INFINITE_SCHEDULER_CONFIG",
                help="The configuration, a TOML file; its apps are added to the store.",
            ),
        ],
        None,
    ),
    _option(
        "store",
        Annotated[
            str | None,
            typer.Option("--store", metavar="URL", help="The store, as sqlite:///FILE; overrides the configuration."),
        ],
        None,
    ),
    _option("json", Json, default=False),
    _option("debug", Debug, default=False),
)
