"""Runs a command and ends it: every way out has an exit code and one clear line."""

import contextlib
import io
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final

import typer

from infinite_scheduler.cli.commands import app
from infinite_scheduler.cli.completion import rejoin_words
from infinite_scheduler.errors import ErrorKind, SchedulerError

PROGRAM: Final = "infinite-scheduler"
COMPLETION: Final = "_INFINITE_SCHEDULER_COMPLETE"
"""The variable with which a shell asks for completions."""

OK: Final = 0
FAILURE: Final = 1
BAD_INPUT: Final = 2
NOT_FOUND: Final = 3
TOO_LATE: Final = 4
NO_STORE: Final = 5
INTERRUPTED: Final = 130  # 128 plus the number of SIGINT, as in shells

EXIT_CODES: Final[Mapping[ErrorKind, int]] = {
    ErrorKind.INVALID: BAD_INPUT,
    ErrorKind.TOO_LARGE: BAD_INPUT,
    ErrorKind.UNKNOWN_APP: BAD_INPUT,
    ErrorKind.KEY_CONFLICT: BAD_INPUT,
    ErrorKind.NOT_SUPPORTED: BAD_INPUT,
    ErrorKind.MISCONFIGURED: BAD_INPUT,
    ErrorKind.NOT_FOUND: NOT_FOUND,
    ErrorKind.TOO_LATE: TOO_LATE,
    ErrorKind.UNAVAILABLE: NO_STORE,
    ErrorKind.OVERLOADED: NO_STORE,
    ErrorKind.BROKEN: NO_STORE,
    ErrorKind.FAILED: FAILURE,
}
_USAGE_ERROR: Final[Any] = typer.BadParameter.__base__  # typer does not export it


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command named by these arguments, by default those of the process. Returns the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    _accept_any_text()
    try:
        if os.environ.get(COMPLETION) == "complete_bash":
            rejoin_words(os.environ)
        code = app(given, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return FAILURE
    except SystemExit as end:
        _forget_stdout()
        return end.code if isinstance(end.code, int) else FAILURE
    except Exception as error:  # noqa: BLE001 - the last resort: no command ends with a traceback unless asked for
        return _refuse(error, as_json="--json" in given, debug="--debug" in given)
    return code if isinstance(code, int) else OK


def _accept_any_text() -> None:
    """If a terminal's encoding lacks a character, show its number instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _refuse(error: Exception, *, as_json: bool, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    if isinstance(error, _USAGE_ERROR):
        return _end(_usage(error), BAD_INPUT, as_json=as_json)
    if isinstance(error, SchedulerError):
        return _end(str(error), EXIT_CODES[error.kind], as_json=as_json)
    hint = "" if debug else "; run the command again with --debug to see where"
    return _end(f"unexpected {type(error).__name__}: {error}{hint}", FAILURE, as_json=as_json)


def _usage(error: Any) -> str:
    """What is wrong with the arguments, and how to find out what is right."""
    message = str(error.format_message()).rstrip(".")
    path = error.ctx.command_path if error.ctx else PROGRAM
    return f"{message}; see {path} --help"


def _end(message: str, code: int, *, as_json: bool) -> int:
    with contextlib.suppress(BrokenPipeError):
        line = json.dumps({"error": message, "code": code}) if as_json else f"error: {message}"
        print(line, file=sys.stderr, flush=True)
    return code


def _forget_stdout() -> None:
    """Drop what is left in the buffer: the output is not read any more, and there must be no error about it at exit."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
