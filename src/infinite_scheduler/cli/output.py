"""What a command prints: one JSON object per line for scripts, tables for people."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

PIPED_WIDTH: Final = 240
"""The width without a window: nothing is cut in a file or a pipe."""

STATUS_STYLES: Final = {
    "pending": "cyan",
    "done": "green",
    "failed": "red",
    "expired": "yellow",
    "cancelled": "dim",
    "alive": "green",
    "leaving": "yellow",
    "draining": "yellow",
    "drained": "yellow",
    "clock off": "red",
    "no node": "red",
    "held back": "red",
    "silent": "red",
    "dead": "red",
    "paused": "yellow",
    "running": "green",
    "ready": "green",
    "not ready": "red",
    "unsent": "yellow",
    "refused": "red",
    "replayed": "green",
    "dropped": "dim",
    "created": "green",
}


class Output:
    """The results of a command on stdout, and what accompanies them on stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.console = console()
        self.errors = console(stderr=True)

    def record(self, record: msgspec.Struct | Mapping[str, Any]) -> None:
        """One JSON object on a line of its own."""
        print(msgspec.json.encode(record).decode())

    def say(self, text: str, style: str = "") -> None:
        """One line for people."""
        self.console.print(Text(plain(text), style=style), soft_wrap=True)

    def note(self, text: str, style: str = "") -> None:
        """One line on stderr, apart from the result on stdout."""
        self.errors.print(Text(plain(text), style=style), soft_wrap=True)

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        whole: Sequence[str] = (),
        spare: Sequence[str] = (),
    ) -> None:
        """Rows under their headings.

        The columns named `whole` are never wrapped; those named `spare` are left out, the first one first, if the
        window is too narrow, and a note says which.
        """
        cells = [[cell(value) for value in row] for row in rows]
        shown = [name for number, name in enumerate(columns) if any(row[number] for row in cells)]
        table = _table(columns, cells, shown, whole)
        left_out = []
        for name in spare:
            if self._fits(table):
                break
            if name in shown:
                shown.remove(name)
                left_out.append(name)
                table = _table(columns, cells, shown, whole)
        if not self._fits(_table(columns, cells, [name for name in shown if name in whole], whole)):
            table = _table(columns, cells, shown, ())  # fold rather than cut
        self.console.print(table)
        if left_out and self.console.is_terminal:
            note = f"left out for width: {', '.join(left_out)}; --json has everything"
            self.errors.print(Text(note, style="dim"))

    def _fits(self, table: Table) -> bool:
        unlimited = self.console.options.update(width=10_000)
        return Measurement.get(self.console, unlimited, table).maximum <= self.console.width

    def facts(self, facts: Mapping[str, object]) -> None:
        """Names and their values, one per line."""
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in facts.items():
            if value not in (None, "", ()):
                table.add_row(name, cell(value))
        self.console.print(table)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Text]], shown: Sequence[str], whole: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    for name in shown:
        table.add_column(name, no_wrap=name in whole, overflow="fold")
    for row in rows:
        table.add_row(*(text for name, text in zip(columns, row, strict=True) if name in shown))
    return table


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the window, or wide enough if there is none."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else PIPED_WIDTH)


def cell(value: object) -> Text:
    """A cell of a table; states have colours."""
    text = "" if value is None else plain(str(value))
    return Text(text, style=STATUS_STYLES.get(text, ""))


def plain(text: str) -> str:
    """The text without anything that could control a terminal: the data of jobs was written by others."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
