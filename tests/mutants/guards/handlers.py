"""A call of a user's function ends exactly once, whatever it does to its thread or process."""

from tests.mutants.mutant import Mutant

PROCESSES = "handlers/processes.py"
PYTHON = "handlers/python.py"
THREADS = "handlers/threads.py"
DEADLINES = "handlers/deadlines.py"
FORKED = "forked.py"
CLIENT = "client.py"
STOP_SIGNALS = "stop_signals.py"

POOL = ("tests/integration/test_process_pool.py",)
FUNCTIONS = ("tests/unit/test_python_handler.py",)
CONTRACT = ("tests/contract/test_handler_contract.py",)
BROKEN = ("tests/unit/test_broken_handlers.py",)
SIGNALS = ("tests/integration/test_stop_signals.py",)
STOPS = ("tests/unit/test_engine_stop.py",)

MUTANTS = (
    Mutant(
        "a second signal does not end the process",
        STOP_SIGNALS,
        "if self._asked or os.getpid() != self._process:",
        "if os.getpid() != self._process:",
        (*SIGNALS, "-k", "second_signal and run and block"),
    ),
    Mutant(
        "the first signal ends the process at once",
        STOP_SIGNALS,
        "if self._asked or os.getpid() != self._process:",
        "if True:",
        (*SIGNALS, "-k", "good_order and serve and stop_loop"),
    ),
    Mutant(
        "a forked child takes a signal for its parent's",
        STOP_SIGNALS,
        "if self._asked or os.getpid() != self._process:",
        "if self._asked:",
        (*SIGNALS, "-k", "ends_a_forked_child"),
    ),
    Mutant(
        "a handler that cancels all tasks leaves a stop unfinished",
        STOP_SIGNALS,
        "            task.uncancel()\n",
        "            raise\n",
        (*SIGNALS, "-k", "good_order and cancel_all"),
    ),
    Mutant(
        "a program has not its own signal handlers back after a run",
        STOP_SIGNALS,
        "            signal.signal(number, signal.SIG_DFL if action is None else action)\n",
        "            pass\n",
        (*SIGNALS, "-k", "back_after_a_run"),
    ),
    Mutant(
        "workers are forked from a process with threads",
        PROCESSES,
        'multiprocessing.get_context("spawn")',
        'multiprocessing.get_context("fork")',
        POOL,
    ),
    Mutant(
        "a worker that died takes its jobs along",
        PROCESSES,
        '            raise WorkerDied(f"{what} ended its worker process ({self._end()})") from None\n',
        "            return [None] * len(jobs)  # type: ignore[list-item]\n",
        POOL,
    ),
    Mutant(
        "a worker that died while idle is blamed on the next job",
        PROCESSES,
        "        for _ in range(2):\n",
        "        for _ in range(1):\n",
        POOL,
    ),
    Mutant(
        "a worker that is dead is used again",
        PROCESSES,
        "            if idle.alive:\n                return idle\n",
        "            if True:\n                return idle\n",
        POOL,
        survives="a send that fails leads to another worker: the second line of defence",
    ),
    Mutant(
        "a worker that was killed just after its answer is used again",
        PROCESSES,
        "        if self._let_go():\n"
        "            self._workers.discard(worker)  # killed just after its answer\n"
        "        else:\n"
        "            self._workers.give_back(worker)\n",
        "        self._let_go()\n        self._workers.give_back(worker)\n",
        POOL,
        survives="the next call that borrows it finds that it is dead",
    ),
    Mutant(
        "a call that was given up is made",
        PROCESSES,
        "                if self._ended:\n                    self._workers.give_back(worker)\n",
        "                if False:\n                    self._workers.give_back(worker)\n",
        (*FUNCTIONS, "-k", "given_up_before"),
    ),
    Mutant(
        "a call that exceeds its time goes on in its process",
        PROCESSES,
        "            if self._worker is not None:\n                self._worker.kill()\n",
        "            if False:\n                self._worker.kill()\n",
        POOL,
    ),
    Mutant(
        "a signal to the whole group ends the workers",
        PROCESSES,
        "    signal.signal(signal.SIGINT, signal.SIG_IGN)\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
        "",
        POOL,
    ),
    Mutant(
        "an exit in a worker's function ends the worker",
        PROCESSES,
        "    except BaseException as error:  # noqa: BLE001 - an exit in a handler is an error of its job\n"
        "        return [as_error(error)]",
        "    except Exception as error:  # noqa: BLE001 - an exit in a handler is an error of its job\n"
        "        return [as_error(error)]",
        POOL,
    ),
    Mutant(
        "a batch whose process died fails as a whole",
        PYTHON,
        "elif isinstance(work.error, WorkerDied) and len(jobs) > 1:",
        "elif False:",
        POOL,
    ),
    Mutant(
        "a call that timed out is reported again when it ends",
        PYTHON,
        "        if call.expired:\n            _drop(work.value)\n        elif",
        "        if False:\n            _drop(work.value)\n        elif",
        FUNCTIONS,
    ),
    Mutant(
        "a time-out is not reported",
        PYTHON,
        "            self._report(job, HandlerTimeout(",
        "            print(job, HandlerTimeout(",
        FUNCTIONS,
    ),
    Mutant(
        "a stop is taken for an error of the function",
        PYTHON,
        "                    if _is_stop(raised):\n                        raise\n",
        "",
        (*FUNCTIONS, *STOPS),
    ),
    Mutant(
        "a function that cancels itself is taken for a stop",
        PYTHON,
        "        return task is not None and task.cancelling() > 0\n",
        "        return True\n",
        (*FUNCTIONS, *BROKEN),
    ),
    Mutant(
        "work that was given up before it began is done",
        THREADS,
        "        if not self._claim():\n            return\n",
        "        self._claim()\n",
        (*FUNCTIONS, *STOPS),
    ),
    Mutant(
        "an exit in a thread ends the thread",
        THREADS,
        "        except BaseException as error:  # noqa: BLE001 - an exit in a handler's thread",
        "        except Exception as error:  # noqa: BLE001 - an exit in a handler's thread",
        FUNCTIONS,
    ),
    Mutant(
        "a stop does not say what still runs in threads",
        PYTHON,
        "return self._threads.running() if self._workers is None else ()",
        "return ()",
        (*FUNCTIONS, *STOPS),
    ),
    Mutant(
        "a time-out that has passed is never noticed again",
        DEADLINES,
        "        if self._timer is None:\n"
        "            self._timer = self._clock.call_later(self._timeout_ms, self._tick)\n",
        "        if not self._open or len(self._open) == 1:\n"
        "            self._timer = self._clock.call_later(self._timeout_ms, self._tick)\n",
        FUNCTIONS,
    ),
    Mutant(
        "a forked child goes on as the node",
        FORKED,
        "    for guard in list(_guards):\n        guard.end_when_back()\n",
        "",
        ("tests/integration/test_stop_signals.py", "-k", "fork_and_stay"),
    ),
    Mutant(
        "a function that returned in a forked child is reported there",
        FORKED,
        "    depth += 1\n",
        "",
        ("tests/integration/test_stop_signals.py", "-k", "serve-plain-fork"),
    ),
    # Client
    Mutant(
        "a change that was not granted is told as done",
        CLIENT,
        "        if not decision.granted:\n",
        "        if False:\n",
        (
            "tests/unit/test_harness.py",
            "tests/integration/test_scheduler_life.py",
            "tests/integration/test_cli.py",
            "-k",
            "cancel or late",
        ),
    ),
    Mutant(
        "more jobs than allowed are taken in one call",
        CLIENT,
        "        if len(specs) > most:\n",
        "        if False:\n",
        ("tests/integration/test_enqueue.py", "-k", "more_jobs"),
    ),
    Mutant(
        "a store is given what it cannot do",
        CLIENT,
        "        self.abilities.require(Ability(change))\n",
        "",
        ("tests/unit/test_abilities.py",),
    ),
)
