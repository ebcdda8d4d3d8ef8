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


def test_what_was_left_out_is_said_on_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    for terminal in (True, False):
        out, text = output(24)
        out.console = Console(file=text, width=24, force_terminal=terminal)
        out.errors = Console(file=text, width=80)
        rows = [("0123456789", "tomorrow", "greeting", None)]
        out.table(("job", "due", "name", "tags"), rows, spare=("tags", "name", "due"))
        told = "left out for width: name; --json has everything" in text.getvalue()
        assert told is terminal
    assert capsys.readouterr() == ("", "")


def test_what_fits_is_said_nothing_about() -> None:
    out, text = output(60)
    out.console = Console(file=text, width=60, force_terminal=True)
    out.errors = Console(file=text, width=80)
    out.table(("job", "name"), [("0123456789", "greeting")], spare=("name",))
    assert "left out" not in text.getvalue()


def test_what_may_not_be_wrapped_is_folded_rather_than_cut() -> None:
    for width in (30, 12):
        out, text = output(width)
        out.table(("job", "status"), [("0123456789", "pending")], whole=("job", "status"))
        shown = "".join(text.getvalue().split("─")[-1].split())
        assert {*"0123456789"} <= {*shown}
        assert "…" not in shown


def test_a_column_without_values_is_left_out() -> None:
    out, text = output(80)
    out.table(("job", "name"), [("1", None), ("2", "")])
    assert "name" not in text.getvalue()


def test_facts_without_a_value_are_left_out() -> None:
    out, text = output(80)
    out.facts({"job": "1", "name": None, "attempt": 0})
    assert text.getvalue().split() == ["job", "1", "attempt", "0"]
