"""Worker processes for CPU-bound functions: one call at a time each, so that a process's death points to its job."""

import atexit
import multiprocessing
import multiprocessing.util  # imported for its clean-up at exit: ours, registered later, runs before it
import signal
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final
from weakref import WeakSet

import msgspec

from infinite_scheduler import forked
from infinite_scheduler.errors import Unavailable, WorkerDied
from infinite_scheduler.handlers.answer_codec import pack, unpack
from infinite_scheduler.handlers.answers import Answer, as_error, read_answer, read_answers
from infinite_scheduler.handlers.function import resolve
from infinite_scheduler.model import Job
from infinite_scheduler.observe.context import LogConfig, current_batch, current_job, log_config

# Never fork: this process has threads, and a fork would copy their locks in whatever state they are.
_SPAWN: Final = multiprocessing.get_context("spawn")
_START_SECONDS: Final = 60  # for an interpreter and the imports of the function's module
_READY: Final = b"ready"
_BEGUN: Final = b"begun"

_jobs_encoder: Final = msgspec.msgpack.Encoder(enc_hook=bytes)  # for the key of a job, which may be a subclass of bytes
_jobs_decoder: Final = msgspec.msgpack.Decoder(list[Job])


class Worker:
    """A child process that waits for jobs; all its methods block."""

    def __init__(self, function: str, *, batched: bool) -> None:
        self._function = function
        self._connection, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=_serve, args=(theirs, function, batched, log_config()), name=f"worker {function}", daemon=True
        )
        self._process.start()
        theirs.close()
        _living.add(self)

    def get_ready(self) -> None:
        """Wait until the function is imported in the worker."""
        try:
            answer = self._connection.recv_bytes() if self._connection.poll(_START_SECONDS) else b"it takes too long"
        except (EOFError, OSError):
            answer = f"it ended ({self._end()}); see its stderr. A script needs a main guard".encode()
        if answer != _READY:
            raise Unavailable(f"no worker process for {self._function}: {answer.decode(errors='replace')}")

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def send(self, data: bytes) -> bool:
        """Send it jobs; False: it ended before it could begin with them."""
        try:
            self._connection.send_bytes(data)
            return self._connection.recv_bytes() == _BEGUN
        except (EOFError, OSError):
            return False

    def receive(self, jobs: Sequence[Job]) -> list[Answer]:
        """Wait for the answers to what was sent."""
        try:
            return unpack(self._connection.recv_bytes())
        except (EOFError, OSError):
            what = f"job {jobs[0].id}" if len(jobs) == 1 else f"one of {len(jobs)} jobs from {jobs[0].id} on"
            raise WorkerDied(f"{what} ended its worker process ({self._end()})") from None

    def kill(self) -> None:
        """Kill it at once."""
        self._process.kill()

    def close(self) -> None:
        """Kill it and release its resources."""
        _living.discard(self)
        self._process.kill()
        self._process.join()
        self._process.close()
        self._connection.close()

    def _end(self) -> str:
        self._process.join(5)  # its end of the connection is closed, so it is ending
        code = self._process.exitcode
        if code is None or code >= 0:
            return f"exit code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"{name}: out of memory?" if -code == signal.SIGKILL else name


_living: Final[WeakSet[Worker]] = WeakSet()


@atexit.register
def _kill_all() -> None:
    """Kill all workers: they ignore SIGTERM and SIGINT, and multiprocessing would wait for them."""
    for worker in list(_living):
        worker.kill()


class Errand:
    """One call of the function in a worker: made in a thread, ended from the event loop."""

    def __init__(self, workers: "Workers", jobs: Sequence[Job], started: Callable[[], object]) -> None:
        self._workers = workers
        self._jobs = jobs
        self._started = started
        self._lock = threading.Lock()  # so that a process that is already closed is not killed
        self._worker: Worker | None = None
        self._ended = False

    def __call__(self) -> Any:
        """Make the call; returns what the function returned, as if it had run in this process."""
        worker = self._send()
        try:
            answers = worker.receive(self._jobs)
        except BaseException:
            self._let_go()
            self._workers.discard(worker)
            raise
        if self._let_go():
            self._workers.discard(worker)  # killed just after its answer
        else:
            self._workers.give_back(worker)
        return answers if self._workers.batched else answers[0]

    def end(self) -> None:
        """Kill the worker if the call has begun; prevent the call if it has not."""
        with self._lock:
            self._ended = True
            if self._worker is not None:
                self._worker.kill()

    def _send(self) -> Worker:
        """Find a worker that takes the jobs: one that died while idle is not the fault of the jobs, two are."""
        data = _jobs_encoder.encode(self._jobs)
        for _ in range(2):
            worker = self._workers.borrow()
            with self._lock:
                if self._ended:
                    self._workers.give_back(worker)
                    raise Unavailable(f"job {self._jobs[0].id} was given up before it began")
                self._worker = worker
            self._started()
            if worker.send(data):
                return worker
            self._let_go()
            self._workers.discard(worker)
        raise WorkerDied(f"job {self._jobs[0].id} ended two worker processes when it was sent to them")

    def _let_go(self) -> bool:
        with self._lock:
            self._worker = None
            return self._ended


class Workers:
    """The workers of one function: as many as there are concurrent calls; the last one used is reused first."""

    def __init__(self, function: str, *, batched: bool) -> None:
        self._function = function
        self.batched = batched
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._stopped = False

    def open(self) -> None:
        """Let workers be started, also after a stop."""
        self._stopped = False

    def borrow(self) -> Worker:
        """An idle worker, or a new one."""
        while (idle := self._pop()) is not None:
            if idle.alive:
                return idle
            self.discard(idle)
        worker = Worker(self._function, batched=self.batched)
        with self._lock:
            self._all.add(worker)
            if self._stopped:
                worker.kill()
        try:
            worker.get_ready()
        except BaseException:
            self.discard(worker)
            raise
        return worker

    def give_back(self, worker: Worker) -> None:
        """Return a worker after its call."""
        self._idle.append(worker)

    def discard(self, worker: Worker) -> None:
        """Close a worker that is dead or no longer needed."""
        with self._lock:
            self._all.discard(worker)
        worker.close()

    def prove(self) -> None:
        """Start one, to find out before the first job if the function cannot be imported there."""
        self.give_back(self.borrow())

    def kill(self) -> None:
        """Kill all of them at once, and start no more."""
        with self._lock:
            self._stopped = True
            for worker in self._all:
                worker.kill()

    def close(self) -> None:
        """Close the idle workers: after the last call these are all of them."""
        while (worker := self._pop()) is not None:
            self.discard(worker)

    def _pop(self) -> Worker | None:
        with self._lock:
            return self._idle.pop() if self._idle else None


def _serve(connection: Connection, name: str, batched: bool, settings: LogConfig | None) -> None:
    """The main function of a worker process."""
    # Ctrl-C or a service manager's SIGTERM reaches all processes, but calls in flight may finish: the node decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        if settings is not None:
            from infinite_scheduler.observe.logs import configure_logging  # noqa: PLC0415 - structlog takes 60 ms

            configure_logging(settings.level, settings.format, settings.modules)
        function = resolve(name)
    except BaseException as error:  # noqa: BLE001 - the node reports it
        connection.send_bytes(f"{type(error).__name__}: {error}".encode(errors="replace"))
        return
    connection.send_bytes(_READY)
    try:
        while True:
            jobs = _jobs_decoder.decode(connection.recv_bytes())
            connection.send_bytes(_BEGUN)
            depth = forked.depth
            answers = _call(function, jobs, batched=batched)
            if forked.depth != depth:
                forked.end()
            connection.send_bytes(pack(answers))
    except (EOFError, OSError):  # the node is gone
        return


def _call(function: Callable[[Any], Any], jobs: list[Job], *, batched: bool) -> Sequence[Answer]:
    try:
        if batched:
            current_batch.set(jobs)
            return read_answers(function(jobs), len(jobs))
        current_job.set(jobs[0])
        return [read_answer(function(jobs[0]))]
    except BaseException as error:  # noqa: BLE001 - an exit in a handler is an error of its job
        return [as_error(error)] * len(jobs)
