"""What commands print for people."""

import io

import pytest
from rich.console import Console

from infinite_scheduler.cli.output import Output, cell, plain


def output(width: int) -> tuple[Output, io.StringIO]:
    out, text = Output(as_json=False), io.StringIO()
    out.console = Console(file=text, width=width)
    return out, text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain", "plain"), ("\x1b[31mred", "\\x1b[31mred"), ("a\r\nb", "a\\r\nb"), ("höher ✓", "höher ✓")],
)
def test_what_others_wrote_cannot_command_the_terminal(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_what_others_wrote_is_no_markup() -> None:
    assert str(cell("[red]x[/]")) == "[red]x[/]"


def test_a_narrow_window_leaves_out_what_can_be_spared() -> None:
    for width, headings in ((60, ["job", "due", "name"]), (24, ["job", "due"]), (12, ["job"])):
        out, text = output(width)
        out.table(("job", "due", "name"), [("0123456789", "tomorrow", "greeting")], spare=("name", "due"))
        assert text.getvalue().split("─")[0].split() == headings
        assert "0123456789" in text.getvalue()


def test_a_column_without_values_is_left_out() -> None:
    out, text = output(80)
    out.table(("job", "name"), [("1", None), ("2", "")])
    assert "name" not in text.getvalue()


def test_facts_without_a_value_are_left_out() -> None:
    out, text = output(80)
    out.facts({"job": "1", "name": None, "attempt": 0})
    assert text.getvalue().split() == ["job", "1", "attempt", "0"]
