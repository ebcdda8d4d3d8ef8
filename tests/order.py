"""In which order the workers of a parallel run take the tests: a pytest plugin.

Each worker begins with tests that mostly wait, for servers and processes, while the tests of the protocol use the
processors. Tests that compute come last: they are short, so that the workers end together.
"""

from collections.abc import Sequence
from itertools import groupby

import pytest

WAITING = ("tests/integration/", "tests/kafka/", "tests/servers/")
"""Folders of tests that wait more than they compute."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        places = dealt([item.nodeid for item in items], workers)
        items[:] = [items[place] for place in places]


def dealt(tests: Sequence[str], workers: int) -> Sequence[int]:
    """The places of the tests in an order whose equal parts, one per worker, all begin with tests that wait.

    Tests of one module stay together, as they share what it sets up; only modules that compute may be cut.
    """
    by_module = [
        list(places) for _, places in groupby(range(len(tests)), lambda place: tests[place].partition("::")[0])
    ]
    waiting = [module for module in by_module if tests[module[0]].startswith(WAITING)]
    computing = [place for module in by_module if module not in waiting for place in module]
    order: list[int] = []
    for worker in range(workers):
        own = [place for module in waiting[worker::workers] for place in module]
        size = (len(tests) - len(order)) // (workers - worker)
        room = max(size - len(own), 0)
        order += own + computing[:room]
        del computing[:room]
    return order + computing
