"""Nodes as processes whose handlers misbehave: a signal still stops them, and a second one always does."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from infinite_scheduler import Client, stop_signals
from tests.waiting import until

BOUND_S = 30
AT_ONCE_S = 10
"""Longer than anything takes here, and much shorter than the time that calls in flight have."""

HANDLERS = """
import asyncio, os, time
from pathlib import Path

def note(name, text):
    with Path(name).open("a") as file:
        file.write(f"{text}\\n")

def fork(job):
    child = os.fork()
    if child:
        note("children", child)
    return child

async def cancel_all(job):
    for task in asyncio.all_tasks():
        task.cancel()

async def stop_loop(job):
    asyncio.get_running_loop().stop()

async def fork_and_return(job):
    fork(job)

async def fork_and_wait(job):
    fork(job)
    await asyncio.sleep(0)

async def fork_and_stay(job):
    never = asyncio.get_running_loop().create_future()  # asyncio's own waits refuse to begin in a child
    if not fork(job):
        await never

async def fork_and_raise(job):
    fork(job)
    raise ValueError("in both processes")

async def block(job):
    time.sleep(600)

async def refuse(job):
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

async def leave_a_thread(job):
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)

async def take(job):
    note("calls", f"{os.getpid()} {job.id}")
    if job.data != "innocent":
        await globals()[job.data](job)

def take_in_thread(job):
    note("calls", f"{os.getpid()} {job.id}")
    if job.data != "innocent":
        globals()[job.data](job)
"""

CONFIG = """
[store]
url = "sqlite:///jobs.db"
[node]
stop_timeout = "60s"
[apps.mail]
function = "handlers:take"
shards = 2
retry = { delays = ["1h"], max_attempts = 2 }
[apps.plain]
function = "handlers:take_in_thread"
shards = 2
[apps.pooled]
function = "handlers:take_in_thread"
pool = "process"
concurrency = 1
shards = 2
"""

MAIN = """
import asyncio, sys
from pathlib import Path
from infinite_scheduler import MultiAppScheduler, Scheduler
from infinite_scheduler.config import load_settings

settings = load_settings(Path("scheduler.toml"))
if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(not asyncio.run(Scheduler(settings=settings).run()))
    sys.exit(not MultiAppScheduler(settings=settings).run())
"""


class Program:
    """A node as a process, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in (("handlers.py", HANDLERS), ("scheduler.toml", CONFIG), ("program.py", MAIN)):
            (folder / name).write_text(text, encoding="utf-8")
        self.process: subprocess.Popen[bytes]

    def start(self, way: str) -> None:
        command = {"serve": ["-m", "infinite_scheduler", "serve", "--config", "scheduler.toml"]}
        arguments = command.get(way, ["program.py", way])
        with (self.folder / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *arguments], cwd=self.folder, stdout=output, stderr=subprocess.STDOUT
            )

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self, within_s: float = BOUND_S) -> int:
        """Its exit code."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it still runs: {self.output}") from None

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(encoding="utf-8")

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for child in self.lines("children"):
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)

    def client(self) -> Client:
        return Client(f"sqlite:///{self.folder / 'jobs.db'}")

    async def schedule(self, data: str, app: str = "mail") -> str:
        async with self.client() as client:
            await client.register(app, 2)
            return (await client.schedule(app, data, delay=0)).id

    async def begun(self, data: str) -> None:
        """Let a handler do this, and wait until it is called."""
        job = await self.schedule(data)
        until(lambda: any(job in line for line in self.lines("calls")), lambda: self.output)

    async def done(self, data: str = "innocent", app: str = "mail") -> None:
        async with self.client() as client:
            await client.register(app, 2)
            job = await client.schedule(app, data, delay=0)
            assert (await client.wait(job.id, timeout=BOUND_S)).status == "done", self.output

    async def has_left(self) -> bool:
        """Did it stop in good order?"""
        async with self.client() as client:
            view = (await client.survey()).view
        return not view.nodes and all(info.released for info in view.shards)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    yield program
    program.end()


@pytest.mark.parametrize("offence", ["cancel_all", "stop_loop"])
@pytest.mark.parametrize("way", ["serve", "threaded"])
async def test_a_node_goes_on_and_stops_in_good_order(program: Program, way: str, offence: str) -> None:
    program.start(way)
    await program.done()
    await program.begun(offence)
    await program.done()
    program.signal(signal.SIGTERM)
    assert program.ended(AT_ONCE_S) == 0, program.output
    assert await program.has_left()


@pytest.mark.parametrize("offence", ["cancel_all", "stop_loop"])
async def test_a_program_whose_tasks_are_all_cancelled_stops_its_node_in_good_order(
    program: Program, offence: str
) -> None:
    program.start("run")
    await program.done()
    await program.begun(offence)
    assert program.ended(AT_ONCE_S) == 1
    assert await program.has_left()


@pytest.mark.parametrize(("offence", "number"), [("block", signal.SIGTERM), ("refuse", signal.SIGINT)])
@pytest.mark.parametrize("way", ["serve", "run", "threaded"])
async def test_a_second_signal_ends_a_node_at_once(
    program: Program, way: str, offence: str, number: signal.Signals
) -> None:
    program.start(way)
    await program.begun(offence)
    program.signal(number)
    until(lambda: noticed(program.process.pid, number), "the signal")
    with pytest.raises(subprocess.TimeoutExpired):
        program.process.wait(0.1)
    program.signal(number)
    assert program.ended(AT_ONCE_S) == 128 + number


def noticed(pid: int, number: int) -> bool:
    """Has the process taken the signal, so that another of the same number is not merged with it?"""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    pending = [int(line.split()[1], 16) for line in status if line.startswith(("SigPnd", "ShdPnd"))]
    return not any(mask >> (number - 1) & 1 for mask in pending)


async def test_a_handler_that_refuses_to_be_cancelled_does_not_outlive_its_node(program: Program) -> None:
    (program.folder / "scheduler.toml").write_text(CONFIG.replace("60s", "100ms"), encoding="utf-8")
    program.start("serve")
    await program.begun("refuse")
    program.signal(signal.SIGTERM)
    assert program.ended(AT_ONCE_S) == 1


async def test_a_second_signal_ends_a_process_that_waits_for_a_thread_of_a_handler(program: Program) -> None:
    program.start("serve")
    await program.done("leave_a_thread")
    program.signal(signal.SIGINT)
    until(lambda: "Stopping" in program.output)
    program.signal(signal.SIGINT)
    assert program.ended(AT_ONCE_S) == 130


@pytest.mark.parametrize(
    ("way", "app", "offence"),
    [
        ("serve", "mail", "fork_and_return"),
        ("serve", "mail", "fork_and_wait"),
        ("serve", "mail", "fork_and_stay"),
        ("serve", "mail", "fork_and_raise"),
        ("serve", "plain", "fork"),
        ("serve", "pooled", "fork"),
        ("threaded", "mail", "fork_and_wait"),
    ],
)
async def test_a_forked_child_that_comes_back_ends_and_its_parent_goes_on(
    program: Program, way: str, app: str, offence: str
) -> None:
    program.start(way)
    offender = await program.schedule(offence, app)
    (child,) = until(lambda: program.lines("children"), lambda: program.output)
    until(lambda: is_gone(int(child)), "the child has ended")
    for _ in range(3):
        await program.done(app=app)
    program.signal(signal.SIGTERM)
    assert program.ended() == 0, program.output
    calls = [line.split() for line in program.lines("calls")]
    assert len({pid for pid, _ in calls}) == 1, "a child was handed jobs"
    assert [job for _, job in calls].count(offender) == 1
    assert "came back" in program.output
    assert await program.has_left()


def is_gone(pid: int) -> bool:
    """Has the process ended? Its parent may not have asked how."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def test_a_program_has_its_own_signal_handlers_back_after_a_run() -> None:
    before = [signal.getsignal(number) for number in stop_signals.NUMBERS]
    with stop_signals.StopSignals(lambda: None):
        assert all(signal.getsignal(number) not in before for number in stop_signals.NUMBERS)
    assert [signal.getsignal(number) for number in stop_signals.NUMBERS] == before


CHILD = """
import os, signal, time
from infinite_scheduler.stop_signals import StopSignals

with StopSignals(lambda: print("asked", flush=True)):
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_signal_ends_a_forked_child_and_asks_nobody_to_stop() -> None:
    ended = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert ended.stdout == f"{128 + signal.SIGTERM}\n"
