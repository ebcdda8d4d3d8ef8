"""The command line inside of the tests' process: a command without the half second that a new interpreter takes.

Nodes, signals, pipes and whatever else needs a process of its own are for `subprocess`.
"""

import io
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from infinite_scheduler.cli.run import run

NO_HTTP = {"INFINITE_SCHEDULER_HTTP__ENABLED": "false"}
"""For nodes of tests: many run at once, and there is one default port. Tests of the server choose a free one."""


def run_here(
    arguments: Sequence[str], folder: Path, env: Mapping[str, str], stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """How a command ends that is given in this folder, with this environment and no other."""
    given, out, err = (io.TextIOWrapper(io.BytesIO(text), encoding="utf-8") for text in (stdin.encode(), b"", b""))
    with (
        chdir(folder),
        mock.patch.dict(os.environ, env, clear=True),
        mock.patch("sys.stdin", given),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = run(arguments)
    return subprocess.CompletedProcess(list(arguments), code, *(_written(stream) for stream in (out, err)))


def _written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()
