"""A job that ends its process is found and given up; no other job is charged for it."""

import pytest

from tests.acceptance.checker import judge
from tests.acceptance.place import Place
from tests.waiting import now_ms, until

INNOCENT = 200
MOST_DEATHS = 4


@pytest.mark.parametrize(
    ("function", "deed"),
    [("maybe_die", "kill"), ("maybe_die_in_a_thread", "exit")],
)
def test_a_job_that_ends_its_process_fails_after_at_most_four_deaths_and_no_other_does(
    place: Place, function: str, deed: str
) -> None:
    place.configure(function, app="concurrency = 50")
    start_ms = now_ms() + 1500
    jobs = [{"at": start_ms + number // 4, "data": number} for number in range(INNOCENT)]
    promised = place.schedule([*jobs[: INNOCENT // 2], {"at": start_ms + 25, "data": deed}, *jobs[INNOCENT // 2 :]])
    poison = list(promised)[INNOCENT // 2]

    deaths = 0
    place.node()
    while deaths <= MOST_DEATHS and place.statuses()["pending"]:
        until(lambda: not place.nodes[-1].alive or not place.statuses()["pending"], "an end, or another death")
        if not place.nodes[-1].alive:
            deaths += 1
            place.node()

    rows = place.rows()
    print(f"{deed}: {deaths} deaths, then: {rows[poison]}")
    assert 1 <= deaths <= MOST_DEATHS
    status, error = rows.pop(poison)
    assert status == "failed"
    assert "ended its process" in (error or "")
    assert {status for status, _ in rows.values()} == {"done"}
    assert poison in place.run("jobs", "list", "--status", "failed", "--json").stdout
    verdict = judge(place.evidence(promised))
    assert not verdict.lost
    assert not verdict.early
    assert not verdict.unasked
    assert place.nodes[-1].ready().stop() == 0
