"""Take guards out of the code, one at a time, and say which of them no test misses."""

import argparse
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.trial import Trial, copied, end_all, origin, run


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if _is_chosen(mutant, options.only)]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.file}: {mutant.name}")
        return 0
    if not chosen:
        return _fail(f"no mutant has {options.only!r} in its name or its file; --list shows all of them")
    with copied() as folder:
        found = origin(folder)
        print(f"The tests import copies such as {found}")
        if not found.startswith(str(folder)):
            return _fail("which is not the copy: is another infinite_scheduler before it on the path?")
    return Gate(verbose=options.verbose).judge(chosen, options.jobs)


class Gate:
    """Judges mutants, and remembers how long each set of tests takes with all guards."""

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self._usual_s: dict[tuple[str, ...], float] = {}
        self._measuring: defaultdict[tuple[str, ...], threading.Lock] = defaultdict(threading.Lock)
        self.survivors: list[Mutant] = []
        self.wrong: list[str] = []

    def judge(self, mutants: Sequence[Mutant], at_once: int) -> int:
        """Print a line for each, and a summary; 0: every one is killed, or survives for its reason."""
        began_s = time.monotonic()
        with ThreadPoolExecutor(at_once) as trials:
            verdicts = zip(mutants, trials.map(self._verdict, mutants), strict=True)
            try:
                for number, (mutant, verdict) in enumerate(verdicts, 1):
                    print(f"{number:3}/{len(mutants)} {verdict}: {mutant.name} ({mutant.file})", flush=True)
            except BaseException:
                trials.shutdown(wait=False, cancel_futures=True)
                end_all()
                raise
        self._sum_up(len(mutants), time.monotonic() - began_s)
        return int(bool(self.wrong))

    def _verdict(self, mutant: Mutant) -> str:
        with self._measuring[mutant.tests]:
            if mutant.tests not in self._usual_s:
                with_all = run(mutant.tests)
                if not with_all.green:
                    return self._wrong(mutant, "its tests are not green with all guards", with_all)
                self._usual_s[mutant.tests] = with_all.took_s
        trial = run(mutant.tests, mutant, self._usual_s[mutant.tests])
        if trial.green:
            return self._survived(mutant, trial)
        if not trial.red:
            return self._wrong(mutant, f"its tests could not be run (pytest ended with {trial.code})", trial)
        if mutant.survives is not None:
            return self._wrong(mutant, "is killed now, so its reason is out of date", trial)
        how = "killed, as it hangs" if trial.hung else "killed"
        return f"{how} in {trial.took_s:.1f} s by {trial.first_red or 'the time limit'}"

    def _survived(self, mutant: Mutant, trial: Trial) -> str:
        self.survivors.append(mutant)
        if mutant.survives is None:
            return self._wrong(mutant, "SURVIVES without a reason", trial)
        return f"survives, {mutant.survives}"

    def _wrong(self, mutant: Mutant, what: str, trial: Trial) -> str:
        self.wrong.append(f"{mutant.name} ({mutant.file}): {what}")
        if self._verbose:
            print(trial.output)
        return f"{what}, {trial.took_s:.1f} s"

    def _sum_up(self, count: int, took_s: float) -> None:
        print(f"\n{count} guards were taken out in {took_s / 60:.1f} minutes; {len(self.survivors)} were not missed:")
        for mutant in self.survivors:
            print(f"- {mutant.name} ({mutant.file}): {mutant.survives or 'NO REASON'}")
        if self.wrong:
            print("\nTo be mended:")
            for line in self.wrong:
                print(f"- {line}")


def _is_chosen(mutant: Mutant, only: Sequence[str]) -> bool:
    return not only or any(part in mutant.name or part in mutant.file for part in only)


def _fail(why: str) -> int:
    print(why, file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="those with this text in their name or file"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="how many are tried at a time"
    )
    parser.add_argument("--list", action="store_true", help="print them, and run nothing")
    parser.add_argument("--verbose", action="store_true", help="print what pytest says about those that are not killed")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the tests and the copy go too
    sys.exit(main(sys.argv[1:]))
