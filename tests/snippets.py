"""The snippets of a Markdown page, taken out and run as a reader would run them.

A fence with a title (```` ```toml title="scheduler.toml" ````) is a file. The Python of a page without a title is one
program, in which `await` works at the top level. Commands run line by line: one that ends in `&` in the background,
`JOB` stands for the id that `schedule` printed last, and a comment `# ends with N` names the exit code. A `sleep` with
a comment `# until ... done` takes as long as it takes until the jobs that are due meanwhile are done.
"""

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.command import NO_HTTP, run_here
from tests.waiting import until

ROOT = Path(__file__).parents[1]

FENCE = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.DOTALL | re.MULTILINE)
JOB_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
ENDS_WITH = re.compile(r"# ends with (\d+)")
UNTIL_DONE = re.compile(r"# until .*\bdone$")
ELSEWHERE = ("cd ", "git ", "make ", "pip ", "python -m venv ", ". .venv/")
"""Commands that set a machine up: they are read, not run."""

PLAIN = re.compile(r"infinite-scheduler (?!demo)[^|]*")
"""Commands that need no process of their own: the pages have others that show that there is such a program."""

PATIENCE_S = 60

RUNNER = """
import ast, asyncio, inspect, pathlib, sys
sys.path.insert(0, "")
code = compile(pathlib.Path(sys.argv[1]).read_text(), sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
result = eval(code, {"__name__": "__main__"})
if inspect.iscoroutine(result):
    asyncio.run(result)
"""


class Snippet(NamedTuple):
    """One fenced block; `line` is where its text begins in the page."""

    language: str
    title: str | None
    text: str
    line: int


def pages() -> list[Path]:
    """Every page that readers are meant to follow."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def snippets(page: Path, language: str | None = None) -> list[Snippet]:
    """The fenced blocks of a page, of one language or of all."""
    text = page.read_text(encoding="utf-8")
    found = (
        Snippet(fence["language"], fence["title"], fence["text"], text.count("\n", 0, fence.start("text")) + 1)
        for fence in FENCE.finditer(text)
    )
    return [snippet for snippet in found if language in (None, snippet.language)]


def write_files(page: Path, folder: Path) -> list[Path]:
    """Write the files that a page shows."""
    written = []
    for snippet in snippets(page):
        if snippet.title:
            path = folder / snippet.title
            path.write_text(snippet.text, encoding="utf-8")
            written.append(path)
    return written


def program(page: Path) -> str:
    """The Python of a page without a title, each line where it stands in the page."""
    lines: list[str] = []
    for snippet in snippets(page, "python"):
        if snippet.title is None:
            lines += [""] * (snippet.line - 1 - len(lines))
            lines += snippet.text.splitlines()
    return "\n".join(lines) + "\n" if lines else ""


def compiles(source: str, name: str) -> None:
    """Raise SyntaxError if a snippet cannot be read."""
    compile(source, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def run_program(source: str, folder: Path) -> str:
    """Run Python in a folder, warnings as errors; returns what it printed."""
    script = folder / "snippets_of_the_page.py"
    script.write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUNNER, script.name],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment() -> dict[str, str]:
    """The environment of a reader who has the package installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INFINITE_SCHEDULER_")} | NO_HTTP
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"}


def commands(page: Path) -> Iterator[str]:
    """The command lines of a page, in order."""
    for snippet in snippets(page, "sh"):
        for line in snippet.text.replace("\\\n", " ").splitlines():
            if line.strip() and not line.startswith("#"):
                yield line


class Reader:
    """Somebody who types the commands of a page into a shell."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = environment()
        self._background: list[subprocess.Popen[bytes]] = []
        self._job = ""
        self.output = folder / "output.txt"
        self.output.touch()

    def type(self, lines: Sequence[str]) -> None:
        """Run these commands; each must end as the page says."""
        try:
            for line in lines:
                if not line.startswith(ELSEWHERE):
                    self._run(line)
        finally:
            for process in self._background:
                process.terminate()
            for process in self._background:
                process.wait(PATIENCE_S)

    def _run(self, line: str) -> None:
        words = shlex.split(line, comments=True)
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            self._environment[name] = value
        elif words[0] == "sleep" and UNTIL_DONE.search(line):
            self._wait(float(words[1]))
        elif words[0] == "sleep":
            time.sleep(float(words[1]))
        elif words[0] == "kill":
            self._kill(words)
        elif words[-1] == "&":
            self._start(words[:-1])
        else:
            self._ask(line)

    def _wait(self, seconds: float) -> None:
        """Readers wait for so long, as their machines are idle; here it takes what it takes."""
        to_ms = int((time.time() + seconds) * 1000)
        waiting = ["jobs", "list", "--status", "pending", "--to", str(to_ms)]

        def is_over() -> bool:
            found = run_here(waiting, self._folder, self._environment)
            assert found.returncode == 0, found.stderr
            return not found.stdout

        until(is_over, "no job is pending any more", every_s=0.05)

    def _kill(self, words: Sequence[str]) -> None:
        assert words[-1] == "$!", words
        number = signal.SIGKILL if "-9" in words else signal.SIGTERM
        process = self._background.pop()
        process.send_signal(number)
        process.wait(PATIENCE_S)

    def _start(self, words: Sequence[str]) -> None:
        before = self.output.read_text(encoding="utf-8")
        with self.output.open("ab") as output:
            self._background.append(
                subprocess.Popen(words, cwd=self._folder, env=self._environment, stdout=output, stderr=output)
            )

        def has_started() -> bool:
            assert self._background[-1].poll() is None, self.output.read_text(encoding="utf-8")
            return "Ctrl-C stops it" in self.output.read_text(encoding="utf-8")[len(before) :]

        until(has_started, f"{words} starts", every_s=0.05)

    def _ask(self, line: str) -> None:
        wanted = ENDS_WITH.search(line)
        typed = re.sub(r"\bJOB\b", self._job, line)
        done = self._here(typed) if PLAIN.fullmatch(typed) else self._in_shell(typed)
        assert done.returncode == (int(wanted[1]) if wanted else 0), f"{line}\n{done.stdout}{done.stderr}"
        with self.output.open("a", encoding="utf-8") as output:
            output.write(done.stdout)
        if " schedule " in line and (found := JOB_ID.search(done.stdout)):
            self._job = found[0]

    def _here(self, line: str) -> subprocess.CompletedProcess[str]:
        return run_here(shlex.split(line, comments=True)[1:], self._folder, self._environment)

    def _in_shell(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
