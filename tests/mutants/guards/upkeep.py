"""What keeps maintenance from deleting anything that is still needed."""

from tests.mutants.mutant import Mutant

ROWS = "store/sql/upkeep_rows.py"
SERVER = "store/sql/server/upkeep.py"
MAKER = "store/sql/server/table_maker.py"

SQLITE = ("tests/integration/sqlite/test_sqlite_upkeep.py",)
SERVERS = ("tests/servers/test_upkeep.py",)
MISSING = ("tests/servers/test_missing_tables.py",)

MUTANTS = (
    Mutant(
        "an app with daily tables is left out of maintenance",
        ROWS,
        "return {app for app in without_jobs if not self._periods(app)}, without_jobs",
        "return without_jobs, without_jobs",
        SQLITE,
    ),
    Mutant(
        "tables are made ahead for apps without jobs",
        ROWS,
        "return {app for app in without_jobs if not self._periods(app)}, without_jobs",
        "return [app for app in without_jobs if not self._periods(app)], ()",
        SQLITE,
    ),
    Mutant(
        "a period that is not settled is old",
        ROWS,
        "if span.ends_ms(period) <= min(before_ms, low_ms)]",
        "if span.ends_ms(period) <= before_ms]",
        SQLITE,
    ),
    Mutant(
        "a period within the retention is old",
        ROWS,
        "if span.ends_ms(period) <= min(before_ms, low_ms)]",
        "if span.ends_ms(period) <= low_ms]",
        SQLITE,
    ),
    Mutant(
        "low of one shard stands for all",
        ROWS,
        '"SELECT MIN(low_ms) FROM scheduler_shards WHERE app = ?"',
        '"SELECT MAX(low_ms) FROM scheduler_shards WHERE app = ?"',
        SQLITE,
    ),
    Mutant(
        "pending jobs are pruned",
        ROWS,
        "AND status <> '{PENDING}' AND finished_ms < ?\"",
        'AND COALESCE(finished_ms, 0) < ?"',
        SQLITE,
    ),
    Mutant(
        "jobs are pruned before their retention",
        ROWS,
        "' AND finished_ms < ?\"",
        "' AND finished_ms < ? + 864000000\"",
        SQLITE,
    ),
    Mutant(
        "a table with jobs is dropped",
        ROWS,
        ' or self._select(f"SELECT 1 FROM {table} LIMIT 1"):',
        ":",
        SQLITE,
    ),
    Mutant(
        "a table is dropped whose period is not old under the lock",
        ROWS,
        "if period not in self.old_periods(app, before_ms) or self._select(",
        "if self._select(",
        SQLITE,
        survives="on SQLite nothing can be inserted between the look and the drop but by a transaction that the "
        "second look, for rows, sees",
    ),
    Mutant(
        "entries are judged before the lock and deleted under it",
        ROWS,
        "        stale = self._stale(shard.app, entries, lows)\n",
        "        stale = entries\n",
        (*SQLITE, "-k", "entry or entries"),
    ),
    Mutant(
        "entries are deleted without the lock of their shard",
        ROWS,
        "self.lock_shards([shard], exclusive=True).items()}",
        "{info.shard: info for info in self.read_shards()}.items()}",
        (*SERVERS, "-k", "move_back"),
    ),
    Mutant(
        "entries after low are deleted",
        ROWS,
        "for at, key in entries if at < start_of(lows.get(Shard(app, shard_of(at)), 0))]",
        "for at, key in entries]",
        (*SQLITE, "-k", "entry or entries"),
        survives="the range of the search ends at the largest low, and an entry of another shard between is stale too",
    ),
    Mutant(
        "entries that lead to a pending job are deleted",
        ROWS,
        "return [entry for entry in old if entry not in current]",
        "return old",
        (*SQLITE, "-k", "entry or entries"),
    ),
    Mutant(
        "a table is dropped although a job in it was tried again",
        ROWS,
        "            and all(revivals.get(day) == n for day, n in self.revivals(app).items())\n",
        "",
        (*SERVERS, "-k", "tried_again"),
    ),
    Mutant(
        "a table is dropped although a request names a job in it",
        ROWS,
        "            and not any(start <= key < end for (keys,) in asked for key in keys_in(keys))\n",
        "",
        (*SERVERS, "-k", "keeps_its_table"),
    ),
    Mutant(
        "a table is dropped although low has gone back into its period",
        ROWS,
        "            period in self.old_periods(app, before_ms)\n            and not any",
        "            not any",
        (*SERVERS, "-k", "keeps_its_table"),
    ),
    Mutant(
        "a table is not looked at again while it is locked",
        MAKER,
        "            if not self._beside(safe):\n                return False\n",
        "",
        (*SERVERS, "-k", "between_look_and_drop or keeps_its_table"),
    ),
    Mutant(
        "a table that is in use is dropped without its lock",
        MAKER,
        "return self._driver.lock_table(cursor, table) and self._drop_locked(cursor, table, safe)",
        "return self._drop_locked(cursor, table, safe)",
        (
            "tests/servers/test_upkeep.py",
            "-k",
            "test_a_table_with_an_insert_that_is_not_committed_yet_is_left_for_later",
        ),
    ),
    Mutant(
        "a drop is not announced",
        MAKER,
        "        cursor.execute(CHANGING)\n        try:\n            yield",
        "        try:\n            yield",
        ("tests/servers/test_upkeep.py", "-k", "test_whoever_waits_for_a_table_that_is_dropped_meets_no_error"),
    ),
    Mutant(
        "a change of tables is not said to be over",
        MAKER,
        "            raise\n        cursor.execute(CHANGED)\n",
        "            raise\n",
        (
            "tests/servers/test_upkeep.py",
            "-k",
            "test_a_maker_that_dies_between_a_table_and_its_announcement_hides_no_job",
        ),
    ),
    Mutant(
        "two processes change tables at once",
        MAKER,
        "            self._driver.lock_tables(cursor)\n"
        "            result = step(cursor)\n"
        "            self._driver.unlock_tables(cursor)\n",
        "            result = step(cursor)\n",
        ("tests/servers/test_migrate.py", *SERVERS, "-k", "at_once or waits_too_long"),
    ),
    Mutant(
        "a user without the right to make tables makes them",
        MAKER,
        "        if not self.allowed:\n"
        "            raise StoreMismatch(\n"
        '                f"{self._driver.location} has no table',
        '        if False:\n            raise StoreMismatch(\n                f"{self._driver.location} has no table',
        ("tests/servers/test_rights.py",),
    ),
    Mutant(
        "unsent dead letters are pruned",
        ROWS,
        "AND state <> '{UNSENT}'\"",
        'AND 1=1"',
        ("tests/contract/test_store_contract.py::TestSqliteInline", "-k", "letter"),
    ),
    Mutant(
        "a node that owns shards is forgotten",
        ROWS,
        "if _heard_ms(n) < before_ms and n.nonce not in owners]",
        "if _heard_ms(n) < before_ms]",
        SQLITE,
    ),
    Mutant(
        "a node that has come back is forgotten",
        ROWS,
        'self._run("DELETE FROM scheduler_nodes WHERE nonce = ? AND beat = ?", node)',
        'self._run("DELETE FROM scheduler_nodes WHERE nonce = ? AND (beat = ? OR 1=1)", node)',
        SQLITE,
    ),
    Mutant(
        "a counter that grew while it was added up loses what came",
        ROWS,
        '        elif self._delete_many("scheduler_counters", COUNTER, rows) != len(rows):\n',
        '        elif self._delete_many("scheduler_counters", COUNTER, rows) > len(rows):\n',
        (*SERVERS, "-k", "counter"),
    ),
    Mutant(
        "counters are deleted whatever they have grown to",
        ROWS,
        'elif self._delete_many("scheduler_counters", COUNTER, rows)',
        'elif self._delete_many("scheduler_counters", COUNTER[:4], [row[:4] for row in rows])',
        (*SERVERS, "-k", "counter"),
    ),
    Mutant(
        "decisions for which callers still wait are deleted",
        "store/sql/upkeep.py",
        "tx.old_decisions(self._now_ms - DECISION_MS)",
        "tx.old_decisions(self._now_ms)",
        SQLITE,
    ),
    Mutant(
        "attempts of jobs that are still there are deleted",
        ROWS,
        'for key in keys - {row[0] for row in self._read_by_key(app, keys, "id", "")}',
        "for key in keys",
        SQLITE,
    ),
)
