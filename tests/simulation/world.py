"""Virtual time and the processes that live in it: every order of events follows from one seed.

Each process has an event loop of its own, and the world decides which one goes on next. So a process can be killed as
by `kill -9` (its loop is never stepped again, no `finally` runs) or paused as by SIGSTOP (time goes on without it).
"""

import asyncio
import contextlib
import heapq
import itertools
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from functools import partial
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH_MS = 1_900_000_000_000
"""Where true time begins, in milliseconds since 1970."""

JITTER = 20e-6
"""Everything comes up to this many seconds later than asked, so what was asked for one moment comes in any order."""

QUIET_EVENTS = 3_000_000
"""A run with more events than this does not come to an end."""


class World:
    """The master of time: runs one event after the other, in an order that the seed decides."""

    def __init__(self, seed: int, *, stall: float = 0.002) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0.0
        self.closed = False
        self.stall = stall  # how likely one step of a process waits for a busy machine first
        self.processes: list[Process] = []
        self.errors: list[str] = []
        self.events = 0
        self.at_close: list[Callable[[], object]] = []
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def now_ms(self) -> float:
        """True time in milliseconds since 1970, not rounded."""
        return EPOCH_MS + self.now * 1000

    def at(self, when: float, call: Callable[[], object]) -> None:
        """Call at this moment or a little later."""
        heapq.heappush(self._heap, (when + self.rng.random() * JITTER, next(self._numbers), call))

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Call after this long or a little later."""
        self.at(self.now + seconds, call)

    def process(self, name: str, *, skew_ms: int = 0) -> "Process":
        """Start a process; its name must be new."""
        process = Process(self, name, skew_ms)
        self.processes.append(process)
        return process

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time go on for this long, or until something holds; says whether it does."""
        end = self.now + seconds
        heap = self._heap
        while heap and heap[0][0] <= end:
            if until is not None and until():
                return True
            self.now, _, call = heapq.heappop(heap)
            self.events += 1
            if self.events > QUIET_EVENTS:
                raise AssertionError(f"seed {self.seed} does not come to an end")
            call()
        if until is not None and until():
            return True
        self.now = end
        return False

    def complete(self, process: "Process", main: Coroutine[Any, Any, T], seconds: float = 600) -> T:
        """Run the coroutine in the process to its end and return its result."""
        task = process.spawn(main)
        if not self.run(seconds, task.done):
            raise AssertionError(f"{process.name} did not finish within {seconds} s")
        return task.result()

    def close(self) -> None:
        """Let go of everything, quietly: what was killed must not speak while it is taken apart."""
        self.closed = True
        self._heap.clear()
        for call in self.at_close:
            call()
        for process in self.processes:
            process.loop.dispose()


class Process:
    """One process: its event loop, its clocks, and whether it runs."""

    def __init__(self, world: World, name: str, skew_ms: int) -> None:
        self.world = world
        self.name = name
        self.skew_ms = skew_ms
        self.alive = True
        self.paused = False
        self.pause_began = 0.0
        self.loop = SimLoop(self)
        self.clock = SimClock(self)
        self.at_death: list[Callable[[], object]] = []
        self._steady_from = world.rng.randrange(1_000_000)
        self._parked: list[Callable[[], object]] = []

    @property
    def runs(self) -> bool:
        """Does it take steps now?"""
        return self.alive and not self.paused

    def spawn(self, main: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a coroutine in this process."""
        return self.loop.create_task(main)

    def when_running(self, call: Callable[[], object]) -> None:
        """Call now, or when the pause is over; never if it is killed before."""
        if self.runs:
            call()
        elif self.alive:
            self._parked.append(call)

    def kill(self) -> None:
        """End it at once: not one more step is taken."""
        if self.alive:
            self.alive = False
            self._parked.clear()
            for call in self.at_death:
                call()

    def pause(self, seconds: float) -> None:
        """Stop it for a while; time goes on, and it wakes up without noticing."""
        if self.runs:
            self.paused = True
            self.pause_began = self.world.now
            self.world.after(seconds, self._resume)

    def _resume(self) -> None:
        self.paused = False
        if self.alive:
            parked, self._parked = self._parked, []
            for call in parked:
                self.when_running(call)
            self.loop.wake()

    def steady_ms(self) -> int:
        return self._steady_from + int(self.world.now * 1000)

    def steady_us(self) -> int:
        return self._steady_from * 1000 + int(self.world.now * 1_000_000)

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self.world.now * 1000) + self.skew_ms


class SimClock:
    """The clocks of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def wall_ms(self) -> int:
        return self._process.wall_ms()

    def steady_ms(self) -> int:
        return self._process.steady_ms()

    def steady_us(self) -> int:
        return self._process.steady_us()

    def call_later(self, ms: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return self._process.loop.call_later(max(0.0, ms) / 1000, callback)


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of one process; the world steps it, one iteration at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._ready: deque[asyncio.Handle] = deque()
        self._armed = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = 64

    def wake(self) -> None:
        """Ask the world for a step, if there is something to do."""
        if self._ready and not self._armed and self._process.runs and not self._world.closed:
            self._armed = True
            luck = self._world.rng.random()
            stalled = luck < self._world.stall
            self._world.after(luck / self._world.stall * 0.2 if stalled else luck * 20e-6, self._step)

    def _step(self) -> None:
        """One iteration: what was ready when it began."""
        self._armed = False
        ready, process = self._ready, self._process
        events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                if not process.runs:
                    break
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            events._set_running_loop(None)
        self.wake()

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self._world.closed:
            self._ready.append(handle)
            if not self._armed:
                self.wake()
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._world.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._world.closed:
            self._world.at(max(when, self._world.now), partial(self._due, handle))
        return handle

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if self._process.alive and not handle.cancelled():
            self._ready.append(handle)
            if not self._armed:
                self.wake()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """The world drops it when its moment comes."""

    def time(self) -> float:
        return self._world.now

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **kwargs: Any) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **kwargs)
        # Referenced until they end: what is collected, and when, must not decide what happens.
        self._tasks.append(task)
        if len(self._tasks) > self._prune_at:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._prune_at = 64 + 2 * len(self._tasks)
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        """Run a blocking function as a thread would: a little later, all at once."""
        future = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 (it belongs to whoever waits)
                future.set_exception(error)
            else:
                future.set_result(result)

        self._world.after(self._world.rng.random() * 1e-3, partial(self._process.when_running, run))
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._world.closed:
            self._world.errors.append(f"{self._process.name}: {context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        raise NotImplementedError

    def is_running(self) -> bool:
        return self._process.alive

    def is_closed(self) -> bool:
        return False

    def close(self) -> None:
        """The world closes it."""

    def __del__(self) -> None:
        """Nothing was opened."""

    async def shutdown_asyncgens(self) -> None:
        """Nothing is kept of asynchronous generators."""

    def run_forever(self) -> NoReturn:
        raise AssertionError("the world steps this loop")

    def run_until_complete(self, future: Any) -> NoReturn:
        raise AssertionError("the world steps this loop")

    def dispose(self) -> None:
        """Take apart what is still suspended; the world is closed, so nothing that it does has an effect."""
        self._ready.clear()
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task.get_coro())
            elif task._log_traceback:
                if self._process.alive:
                    self._world.errors.append(f"{self._process.name}: nobody saw {task.exception()!r}")
                task.exception()
        self._tasks.clear()


def _close(coro: Any) -> None:
    """Close a coroutine that may refuse, by awaiting once more in a `finally`."""
    for _ in range(20):
        with contextlib.suppress(BaseException):
            coro.close()
            return
