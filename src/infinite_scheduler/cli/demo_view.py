"""How the demo looks: a live table, plain lines, or JSON."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from rich import box
from rich.align import Align
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from infinite_scheduler.cli.demo import LADDER_S, MESSAGES, Demo, Sms, Summary
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.model import datetime_of

REFRESH_S = 0.08
FIELDS = ("task_id", "to", "attempt", "due_ms", "late_ms")
WORDS = {"failed": "dim", "delivered": "bold green", "lost": "bold red"}
STORY = (
    "Five SMS have failed. SMS_Retry brings them in, the store keeps them until they are due, SMS_Send takes them out. "
    f"The provider is still down at first: what it refuses is retried after {', '.join(map(str, LADDER_S))} s."
)


async def play_live(screen: Console, kafka: str | None = None, store: str | None = None) -> Summary:
    """A table that changes as the messages move."""
    clock = SystemClock()
    demo = Demo(lambda _: None, kafka, store)
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
    below = _verdict(summary, demo.left) if summary else _progress(demo)
    body = Group(Text(STORY, style="dim"), _table(demo, now_ms), _flow(demo), below)
    return Panel(
        body,
        title="[bold]Infinite Scheduler[/] · demo",
        title_align="left",
        border_style="green" if summary and summary.fine else "red" if summary else "cyan",
        padding=(1, 2),
        expand=False,
    )


def _table(demo: Demo, now_ms: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False, expand=True)
    table.add_column("message", min_width=22, no_wrap=True)
    table.add_column("due (UTC)", min_width=9, no_wrap=True)
    table.add_column("attempt", min_width=7, no_wrap=True)
    table.add_column("state", min_width=17, no_wrap=True)
    table.add_column("late", min_width=6, justify="right", no_wrap=True)
    for sms in demo.messages:
        late = "" if sms.late_ms is None else f"{sms.late_ms} ms"
        table.add_row(
            sms.text,
            f"{datetime_of(sms.due_ms):%H:%M:%S}" if sms.due_ms else "",
            _marks(sms),
            _state(sms, now_ms),
            late,
        )
    return table


def _marks(sms: Sms) -> Text:
    """The attempt number, with a cross per refusal and a tick for the delivery."""
    delivered = sms.state == "delivered"
    marks = Text("" if sms.attempt == 0 else f"{sms.attempt}  ")
    marks.append("✗" * (sms.attempt - delivered), style="red")
    return marks.append("✓" if delivered else "", style="bold green")


def _state(sms: Sms, now_ms: int) -> Text:
    if sms.state in WORDS:
        return Text(sms.state, style=WORDS[sms.state])
    left = max(0, sms.due_ms - now_ms) / 1000
    if sms.state == "refused":
        return Text(f"refused, in {left:.1f} s", style="yellow")
    return Text(f"waits, in {left:.1f} s", style="cyan")


def _flow(demo: Demo) -> Text:
    """How many attempts are where."""
    if not demo.scheduled:
        return Text("The broker, the store and the node start, and consumer groups form …\n", style="dim")
    flow = Text("SMS_Retry ").append(str(demo.scheduled), style="bold").append("  →  store ", style="default")
    flow.append(str(demo.scheduled - demo.arrived), style="bold cyan").append(" waiting  →  SMS_Send ")
    return flow.append(str(demo.arrived), style="bold").append("\n")


def _progress(demo: Demo) -> Text:
    delivered = sum(message.state == "delivered" for message in demo.messages)
    bar = Text("━" * (delivered * 10), style="green").append(
        "━" * ((len(MESSAGES) - delivered) * 10), style="bright_black"
    )
    return bar.append(f"  {delivered} of {len(MESSAGES)} delivered", style="default")


def _verdict(summary: Summary, left: Sequence[str]) -> RenderableType:
    numbers = Text()
    for name, value, good in (
        ("delivered", summary.delivered, summary.delivered == len(MESSAGES)),
        ("early", summary.early, summary.early == 0),
        ("lost", summary.lost, summary.lost == 0),
    ):
        numbers.append(f"{name} ").append(f"{value}", style="bold green" if good else "bold red").append("   ")
    numbers.append("p99 ").append(f"{summary.p99_ms} ms", style="bold").append(" late")
    told = f"{summary.handed_over} attempts in {summary.seconds} s, each when it was due or just after, none before."
    remains = [Text(f"left behind: {what}", style="yellow") for what in left]
    return Group(Align.left(numbers), Text(told if summary.early == 0 else "", style="dim"), *remains)


async def play_as_lines(screen: Console, kafka: str | None = None, store: str | None = None) -> Summary:
    """One line per event."""

    def show(sms: Sms) -> None:
        say(_line(sms, clock.wall_ms()))

    def say(line: str) -> None:
        screen.print(Text(line), soft_wrap=True)

    clock = SystemClock()
    say(STORY)
    demo = Demo(show, kafka, store)
    summary = await demo.play()
    for what in demo.left:
        say(f"left behind: {what}")
    say(
        f"delivered {summary.delivered}, early {summary.early}, lost {summary.lost}, p99 {summary.p99_ms} ms late, "
        f"{summary.handed_over} attempts in {summary.seconds} s"
    )
    return summary


def _line(sms: Sms, now_ms: int) -> str:
    what = f"{_time(now_ms)}  {sms.text:<24}"
    due = f"due {datetime_of(sms.due_ms):%H:%M:%S}"
    match sms.state:
        case "scheduled":
            return f"{what}to SMS_Retry, {due}"
        case "refused":
            return f"{what}attempt {sms.attempt} refused, {sms.late_ms} ms late; to SMS_Retry, {due}"
        case "delivered":
            return f"{what}attempt {sms.attempt} delivered, {sms.late_ms} ms late"
        case _:
            return f"{what}{sms.state}"


async def play_as_json(kafka: str | None = None, store: str | None = None) -> Summary:
    """One object per event, the summary last."""

    def show(sms: Sms) -> None:
        event = msgspec.structs.asdict(sms)
        _print({"event": event.pop("state"), **{name: event[name] for name in FIELDS}})

    demo = Demo(show, kafka, store)
    summary = await demo.play()
    _print({"event": "summary", **msgspec.structs.asdict(summary), "left": demo.left})
    return summary


def _print(event: dict[str, Any]) -> None:
    print(msgspec.json.encode(event).decode(), flush=True)


def _time(ms: int) -> str:
    return f"{datetime_of(ms):%H:%M:%S}.{ms % 1000:03}"
