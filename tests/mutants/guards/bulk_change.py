"""Changes of all that match a filter: each is met once, none is skipped, and no more than was meant is changed."""

from tests.mutants.mutant import Mutant

JOBS = "bulk_change/job_changes.py"
LETTERS = "bulk_change/letter_changes.py"
CURSOR = "bulk_change/step_cursor.py"

CHANGES = ("tests/integration/test_bulk_change.py",)
LETTER_CHANGES = ("tests/api/test_changes.py", "-k", "letter or replay or refused_in_words")

MUTANTS = (
    Mutant(
        "a filter without an app chooses all jobs",
        JOBS,
        "        if not any(name in self._filters for name in _NARROWING):\n",
        "        if False:\n",
        CHANGES,
    ),
    Mutant(
        "a job that was moved is met again",
        JOBS,
        "        return page, [record for record in there if not target_ms <= record.job.due_ms <= latest_ms]\n",
        "        return page, there\n",
        CHANGES,
    ),
    Mutant(
        "a job that was moved to now is met again and again",
        JOBS,
        "        latest_ms = max(target_ms, self._access.now_ms())\n",
        "        latest_ms = target_ms\n",
        CHANGES,
    ),
    Mutant(
        "jobs that were accepted later are changed too",
        JOBS,
        "if _since_ms(record) <= place.started_ms + AHEAD_MS]\n",
        "]\n",
        CHANGES,
    ),
    Mutant(
        "a range moves on from step to step",
        JOBS,
        "parse_moment(filters[name], now_ms=place.started_ms, zone",
        "parse_moment(filters[name], now_ms=self._access.now_ms(), zone",
        CHANGES,
    ),
    Mutant(
        "the moment of a reschedule moves on from step to step",
        JOBS,
        "due_ms = self._target_ms(place.started_ms) if",
        "due_ms = self._target_ms(self._access.now_ms()) if",
        CHANGES,
    ),
    Mutant(
        "jobs whose owner does not answer, or whose store is full, count as refused and are skipped",
        JOBS,
        "UNDECIDED: Final = (Unavailable, StoreBroken)\n",
        "UNDECIDED: Final = (StoreUnavailable,)\n",
        (*CHANGES, "-k", "nothing_was_decided"),
    ),
    Mutant(
        "jobs whose change the store did not answer are skipped",
        JOBS,
        "            cursor = place.text(self._described)\n",
        "            cursor = msgspec.structs.replace(place, place=page.cursor).text(self._described)\n",
        CHANGES,
    ),
    Mutant(
        "all other jobs are tried when the store does not answer",
        JOBS,
        "            if away.is_set() and stops:\n",
        "            if False:\n",
        CHANGES,
    ),
    Mutant(
        "settled jobs are chosen for a cancel",
        JOBS,
        "    if status not in (None, Status.PENDING):\n",
        "    if False:\n",
        CHANGES,
    ),
    Mutant(
        "a cursor of another change is taken",
        CURSOR,
        "            if data[:SUM_BYTES] == _sum(body, change):\n",
        "            if True:\n",
        CHANGES,
    ),
    Mutant(
        "letters after one that the store did not answer are skipped",
        LETTERS,
        "        last = ends[-1].letter.id if stopped is not None else page.cursor\n",
        "        last = page.cursor\n",
        LETTER_CHANGES,
    ),
    Mutant(
        "a replay of all brings back what was dropped",
        LETTERS,
        "        left_alone = {LetterState.REPLAYED} | ({LetterState.DROPPED} - {self._state})\n",
        "        left_alone = {LetterState.REPLAYED}\n",
        LETTER_CHANGES,
    ),
)
