"""Search the models from the command line: python -m tests.model [scenarios|large|mutants|trace] ..."""

from __future__ import annotations

import sys
import time

from tests.model.catalogue import LARGE, RULES, SCENARIOS, model_of, rules_of
from tests.model.search import Result, search

USAGE = """python -m tests.model scenarios [NAME ...]       search scenarios with every rule on (all but the large ones)
python -m tests.model large [NAME ...]           the large ones, most with several faults at once (minutes)
python -m tests.model mutants [RULE ...]         for each missing rule the scenario that catches it first
python -m tests.model trace SCENARIO [RULE ...]  the shortest way to a violation without these rules"""


def report(scenario: str, off: tuple[str, ...] = (), limit: int = 5_000_000) -> tuple[float, Result]:
    started = time.perf_counter()
    result = search(model_of(scenario, off), limit)
    seconds = time.perf_counter() - started
    verdict = result.violation or ("ok" if result.complete else "limit reached")
    print(f"{scenario:20} {','.join(off):24} {result.states:>9} states {seconds:6.2f} s  {verdict}", flush=True)
    return seconds, result


def scenarios(names: list[str]) -> int:
    results = [report(name)[1] for name in names]
    print(f"{sum(result.states for result in results)} states")
    return int(any(result.violation for result in results))


def mutants(rules: list[str]) -> int:
    """For each rule the scenario that catches it after the fewest states."""
    for rule in rules:
        best = next((best for limit in (1_000, 10_000, 200_000) if (best := _catch(rule, limit))), None)
        print(f"{rule:26} {best or 'SURVIVES'}", flush=True)
    return 0


def _catch(rule: str, limit: int) -> tuple[int, str, str] | None:
    best = None
    for name in SCENARIOS:
        if rule not in rules_of(name):
            continue
        result = search(model_of(name, (rule,)), limit)
        if result.violation and result.states <= limit:
            limit = result.states - 1
            best = (result.states, name, f"{len(result.trace)} steps: {result.violation}")
    return best


def trace(scenario: str, off: tuple[str, ...]) -> int:
    _, result = report(scenario, off)
    for number, step in enumerate(result.trace, 1):
        print(f"{number:4}  {step}")
    return int(bool(result.violation))


def main(arguments: list[str]) -> int:
    match arguments:
        case ["scenarios", *names]:
            return scenarios(names or list(SCENARIOS))
        case ["large", *names]:
            return scenarios(names or list(LARGE))
        case ["mutants", *rules]:
            return mutants(rules or RULES)
        case ["trace", scenario, *off]:
            return trace(scenario, tuple(off))
        case _:
            print(USAGE)
            return 2


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as error:
        sys.exit(str(error))
