"""How the demo looks: a live table, plain lines, or JSON."""

import asyncio
from datetime import datetime
from typing import Any

import msgspec
from rich import box
from rich.align import Align
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from infinite_scheduler.cli.demo import LADDER, MESSAGES, Demo, Message, Summary
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.model import moment

REFRESH_S = 0.08
STORY = f"An SMS provider that is down at first. What it refuses is tried again after {', '.join(LADDER)}."


async def play_live(screen: Console) -> Summary:
    """A table that changes while the messages are on their way."""
    clock = SystemClock()
    demo = Demo(lambda _: None)
    with Live(console=screen, auto_refresh=False, transient=False) as live:

        async def refresh() -> None:
            while True:
                live.update(_scene(demo, clock.wall_ms()), refresh=True)
                await asyncio.sleep(REFRESH_S)

        task = asyncio.create_task(refresh())
        try:
            summary = await demo.play()
        finally:
            task.cancel()
        live.update(_scene(demo, clock.wall_ms(), summary), refresh=True)
    return summary


def _scene(demo: Demo, now_ms: int, summary: Summary | None = None) -> RenderableType:
    below = _verdict(summary) if summary else _progress(demo)
    body = Group(Text(STORY, style="dim"), _table(demo, now_ms), below)
    return Panel(
        body,
        title="[bold]Infinite Scheduler[/] · demo",
        title_align="left",
        border_style="green" if summary and summary.fine else "red" if summary else "cyan",
        padding=(1, 2),
        expand=False,
    )


def _table(demo: Demo, now_ms: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, expand=True)
    table.add_column("message", min_width=24, no_wrap=True)
    table.add_column("due (UTC)", min_width=12, no_wrap=True)
    table.add_column("attempt", min_width=7, no_wrap=True)
    table.add_column("state", min_width=18, no_wrap=True)
    table.add_column("late", min_width=6, justify="right", no_wrap=True)
    for message in demo.messages:
        late = "" if message.late_ms is None else f"{message.late_ms} ms"
        due = _time(message.due_ms) if message.id else ""
        table.add_row(message.text, due, _marks(message), _state(message, now_ms), late)
    return table


def _marks(message: Message) -> Text:
    """The number of the attempt, with a cross for each refusal and a tick for the delivery."""
    delivered = message.state == "delivered"
    marks = Text("" if message.attempt == 0 else f"{message.attempt}  ")
    marks.append("✗" * (message.attempt - delivered), style="red")
    return marks.append("✓" if delivered else "", style="bold green")


def _state(message: Message, now_ms: int) -> Text:
    if message.state == "delivered":
        return Text("delivered", style="bold green")
    if message.state == "lost":
        return Text("lost", style="bold red")
    if not message.id:
        return Text("")
    left = max(0, message.due_ms - now_ms) / 1000
    if message.state == "refused":
        return Text(f"refused, in {left:.1f} s", style="yellow")
    return Text(f"waits, in {left:.1f} s", style="cyan")


def _progress(demo: Demo) -> Text:
    delivered = sum(message.state == "delivered" for message in demo.messages)
    bar = Text("━" * (delivered * 10), style="green").append(
        "━" * ((len(MESSAGES) - delivered) * 10), style="bright_black"
    )
    return bar.append(f"  {delivered} of {len(MESSAGES)} delivered", style="default")


def _verdict(summary: Summary) -> RenderableType:
    numbers = Text()
    for name, value, good in (
        ("delivered", summary.delivered, summary.delivered == len(MESSAGES)),
        ("early", summary.early, summary.early == 0),
        ("lost", summary.lost, summary.lost == 0),
    ):
        numbers.append(f"{name} ").append(f"{value}", style="bold green" if good else "bold red").append("   ")
    numbers.append("p99 ").append(f"{summary.p99_ms} ms", style="bold").append(" late")
    told = f"{summary.handed_over} hand-overs in {summary.seconds} s, each at its moment or just after it, none before."
    return Group(Align.left(numbers), Text(told if summary.early == 0 else "", style="dim"))


async def play_as_lines(screen: Console) -> Summary:
    """One line for each thing that happens."""

    def show(message: Message) -> None:
        screen.print(Text(_line(message, clock.wall_ms())), soft_wrap=True)

    clock = SystemClock()
    screen.print(Text(STORY), soft_wrap=True)
    summary = await Demo(show).play()
    screen.print(
        Text(
            f"delivered {summary.delivered}, early {summary.early}, lost {summary.lost}, p99 {summary.p99_ms} ms late, "
            f"{summary.handed_over} hand-overs in {summary.seconds} s"
        ),
        soft_wrap=True,
    )
    return summary


def _line(message: Message, now_ms: int) -> str:
    what = f"{_time(now_ms)}  {message.text:<24}"
    due = f"due {_time(message.due_ms)}"
    match message.state:
        case "accepted":
            return f"{what}accepted, {due}"
        case "refused":
            return f"{what}attempt {message.attempt} refused, {message.late_ms} ms late; again {due}"
        case "delivered":
            return f"{what}attempt {message.attempt} delivered, {message.late_ms} ms late"
        case _:
            return f"{what}lost"


async def play_as_json() -> Summary:
    """One object for each thing that happens, the summary last."""

    def show(message: Message) -> None:
        _print(
            {
                "event": message.state,
                "id": message.id,
                "to": message.to,
                "attempt": message.attempt,
                "due_ms": message.due_ms,
                "late_ms": message.late_ms,
            }
        )

    summary = await Demo(show).play()
    _print({"event": "summary", **msgspec.structs.asdict(summary)})
    return summary


def _print(event: dict[str, Any]) -> None:
    print(msgspec.json.encode(event).decode(), flush=True)


def _time(ms: int) -> str:
    at: datetime = moment(ms)
    return f"{at:%H:%M:%S}.{ms % 1000:03}"
