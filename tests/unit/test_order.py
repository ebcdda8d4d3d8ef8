"""In which order parallel workers take the tests."""

from itertools import groupby

from tests.order import dealt

UNIT = [f"tests/unit/test_{name}.py::test_{number}" for name in "abc" for number in range(9)]
SERVERS = [f"tests/servers/test_{name}.py::test_{number}" for name in "abcd" for number in range(3)]


def order(tests: list[str], workers: int) -> list[str]:
    return [tests[place] for place in dealt(tests, workers)]


def test_every_test_is_there_once() -> None:
    for workers in range(1, 6):
        assert sorted(order(SERVERS + UNIT, workers)) == sorted(SERVERS + UNIT)


def test_each_worker_begins_with_tests_that_wait() -> None:
    tests = order(UNIT + SERVERS, 3)
    parts = [tests[:13], tests[13:26], tests[26:]]
    assert [part[0] for part in parts] == [f"tests/servers/test_{name}.py::test_0" for name in "abc"]
    assert all(part[-1].startswith("tests/unit/") for part in parts)


def test_modules_that_wait_stay_whole() -> None:
    tests = order(UNIT + SERVERS, 3)
    modules = [name for name, _ in groupby(tests, lambda test: test.partition("::")[0]) if "/servers/" in name]
    assert len(modules) == len(set(modules)) == 4


def test_more_tests_that_wait_than_a_worker_has_places_are_all_run() -> None:
    assert sorted(order(SERVERS + UNIT[:1], 4)) == sorted(SERVERS + UNIT[:1])
