"""A node that is killed again and again loses nothing, fires nothing early, repeats only what was in flight."""

import json
import random
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.checker import judge, read_log
from tests.acceptance.installation import clean_environment
from tests.acceptance.place import SOAK, Killer, Place
from tests.waiting import now_ms, until

JOBS, SPAN_S, KILLS = (100_000, 60, 30) if SOAK else (12_000, 12, 6)


@pytest.mark.endurance
@pytest.mark.timeout(400)
def test_a_node_killed_at_random_moments_loses_nothing_and_repeats_only_what_was_in_flight(place: Place) -> None:
    chance = random.Random()
    place.configure()
    start_ms = now_ms() + JOBS // 10 + 2000  # when all of them should be accepted
    promised = place.schedule(
        {"at": start_ms + chance.randrange(SPAN_S * 1000), "data": number} for number in range(JOBS * 4 // 5)
    )
    blows = Killer(place, [start_ms + chance.randrange(SPAN_S * 1000) for _ in range(KILLS)])
    blows.start()
    promised |= place.schedule(  # the others while it goes on
        {"at": now_ms() + chance.randrange(SPAN_S * 1000), "data": number} for number in range(JOBS // 5)
    )
    blows.join()
    place.settled(SPAN_S + 60)

    verdict = judge(place.evidence(promised, blows.made))
    late = sorted(one.wall_ms - promised[one.job] for one in place.handed_over())
    print(
        f"{len(promised):,} jobs, {len(blows.made)} kills, {len(verdict.explained)} repeats explained, "
        f"lateness p50 {late[len(late) // 2]} ms, most {late[-1]} ms"
    )
    assert not verdict.faults
    place.all_done(promised, blows.made)
    assert place.nodes[-1].stop() == 0


@pytest.mark.timeout(180)
def test_retries_survive_kills(place: Place) -> None:
    chance = random.Random()
    place.configure("fail_at_first", app='retry = { delays = ["1s"], jitter = 0.0, floor = "0s" }')
    start_ms = now_ms() + 2500
    promised = place.schedule({"at": start_ms + chance.randrange(6000)} for _ in range(3000))
    # After the fourth death an innocent job could be blamed for it.
    killer = Killer(place, [start_ms + chance.randrange(8000) for _ in range(3)])
    killer.start()
    killer.join()
    place.settled()

    verdict = judge(place.evidence(promised, killer.made))
    print(f"{len(promised):,} jobs, {len(killer.made)} kills, {len(verdict.explained)} repeats explained")
    assert not verdict.faults
    assert {(one.job, one.attempt) for one in place.handed_over()} == {(job, n) for job in promised for n in (1, 2)}
    assert place.statuses() == {"done": len(promised)}
    assert place.nodes[-1].stop() == 0


@pytest.mark.timeout(180)
def test_jobs_that_were_running_for_long_when_their_node_was_killed_are_handed_over_again(place: Place) -> None:
    chance = random.Random()
    # Small steps, so that lines move on while calls last: what is left behind must be found again.
    place.configure("linger", app="concurrency = 1000", more='[window]\nlookahead = "1s"\nfetch_interval = "500ms"')
    start_ms = now_ms() + 2500
    promised = place.schedule(
        {"at": start_ms + chance.randrange(5000), "data": chance.uniform(0, 1.5)} for _ in range(800)
    )
    # After two deaths suspects go out 30 at a time, after three one by one, which would take minutes.
    killer = Killer(place, [start_ms + 1500 + chance.randrange(4000) for _ in range(2)])
    killer.start()
    killer.join()
    place.settled()

    ended = read_log(place.folder / "ended.log")
    verdict = judge(place.evidence(promised, killer.made)._replace(ended=ended))
    print(f"{len(promised):,} jobs, {len(killer.made)} kills, {len(verdict.explained)} repeats explained")
    assert not verdict.faults
    assert {one.job for one in ended} == promised.keys()
    assert place.statuses() == {"done": len(promised)}
    assert place.nodes[-1].stop() == 0


def test_the_worker_processes_of_a_killed_node_end_too_and_their_jobs_are_done_by_the_next(place: Place) -> None:
    place.configure("compute", app='pool = "process"\nconcurrency = 4')
    node = place.node().ready()
    start_ms = now_ms() + 1500
    promised = place.schedule({"at": start_ms + 5 * number} for number in range(600))
    until(lambda: len(place.handed_over()) > 100, "hand-overs")
    (killed,) = place.kill(node)
    workers = {one.pid for one in place.handed_over()}
    assert node.pid not in workers
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the end of its workers")

    again = place.node().ready()
    place.settled()
    verdict = judge(place.evidence(promised, [killed._replace(pid=pid) for pid in workers]))
    print(f"{len(promised):,} jobs in {len(workers)} processes, {len(verdict.explained)} repeats explained")
    assert not verdict.faults
    assert place.statuses() == {"done": len(promised)}
    assert again.stop() == 0


def test_what_a_killed_caller_was_answered_is_kept(place: Place) -> None:
    place.configure()
    file = place.folder / "many.ndjson"
    file.write_text("".join(f'{{"at": {now_ms() + 3000}, "data": {number}}}\n' for number in range(100_000)))
    answers = place.folder / "answers"
    with answers.open("wb") as out:
        command = [place.installation.command, "schedule", place.app, "--from", str(file), "--json"]
        caller = subprocess.Popen([*command, "--config", str(place.config)], stdout=out, env=clean_environment())
        until(lambda: answers.stat().st_size > 100_000, "the first answers")
        caller.kill()
        caller.wait()
    lines = answers.read_text().splitlines()[:-1]  # the last one may be torn
    promised = {answer["id"]: answer["due_ms"] for answer in map(json.loads, lines)}
    print(f"{len(promised):,} of 100,000 jobs were answered before the kill")
    assert len(promised) < 99_000

    node = place.node().ready()
    place.settled()
    verdict = judge(place.evidence(promised))
    assert not verdict._replace(unasked=[]).faults  # accepted, but the answer was not heard: that may happen
    assert node.stop() == 0
