"""What keeps jobs safe on MariaDB and PostgreSQL: locks, compare-and-sets, and what a lost connection means."""

from tests.mutants.mutant import Mutant

MARIA = "store/sql/server/mariadb_dialect.py"
MARIA_DRIVER = "store/sql/server/mariadb.py"
MARIA_CONNECTION = "store/sql/server/mariadb_connection.py"
POSTGRES = "store/sql/server/postgres_dialect.py"
POSTGRES_DRIVER = "store/sql/server/postgres.py"
SESSION = "store/sql/server/session.py"
PSYCOPG_LOG = "store/sql/server/psycopg_log.py"

CONTRACT = "tests/contract/test_servers.py"
LOST = ("tests/servers/test_lost_connections.py",)
CONFLICTS = ("tests/servers/test_conflicts.py",)
ORDERS = "tests/servers/test_line_protocol.py"
ROWS = ("tests/servers/test_many_rows.py",)
USERS = ("tests/servers/test_enqueue.py",)


def maria(promise: str) -> tuple[str, ...]:
    """A part of the contract of the statements, on MariaDB."""
    return (CONTRACT, "-k", f"TestMariaStatements and ({promise})")


def postgres(promise: str) -> tuple[str, ...]:
    """A part of the contract of the statements, on PostgreSQL."""
    return (CONTRACT, "-k", f"TestPostgresStatements and ({promise})")


def orders(kind: str) -> tuple[str, ...]:
    """The orders of transactions that need a lock, on one kind of server."""
    return (ORDERS, "-k", f"promise_holds and {kind}")


MUTANTS = (
    Mutant(
        "psycopg writes about lost connections of the store",
        PSYCOPG_LOG,
        "            logging.getLogger(name).addFilter(self)\n",
        "            pass\n",
        ("tests/servers/test_psycopg_log.py", "-k", "about_our"),
    ),
    Mutant(
        "psycopg is silent about a program's own connections",
        PSYCOPG_LOG,
        "        if not any(map(self._is_ours, record.args or ())):\n            return True\n",
        "",
        ("tests/servers/test_psycopg_log.py", "-k", "about_other"),
    ),
    # MariaDB
    Mutant(
        "jobs that just end: the status is not compared", MARIA, " AND status = '{was}'\"", '"', maria("any_outcomes")
    ),
    Mutant(
        "jobs that just end: the attempt is not compared",
        MARIA,
        'f" AND attempt = {attempt:d} AND due_ms',
        'f" AND due_ms',
        maria("any_outcomes"),
    ),
    Mutant(
        "jobs that just end: the due moment is not compared",
        MARIA,
        ' AND due_ms = CAST(CONV(HEX(LEFT(id, 6)), 16, 10) AS UNSIGNED)"',
        '"',
        maria("any_outcomes"),
    ),
    Mutant(
        "a job of another attempt is taken for one that just ends",
        MARIA,
        "        attempt == tried\n        and due_ms",
        "        due_ms",
        maria("any_outcomes or differ"),
    ),
    Mutant(
        "a job that was moved is taken for one that just ends",
        MARIA,
        'due_ms == until == int.from_bytes(key[:6], "big")',
        "due_ms == until",
        maria("any_outcomes"),
    ),
    Mutant(
        "a job that ends with an error is taken for one that just ends",
        MARIA,
        "and scheduled_ms is None is error",
        "and scheduled_ms is None",
        maria("any_outcomes or more_changes"),
    ),
    Mutant(
        "a job whose scheduled time changes is taken for one that just ends",
        MARIA,
        "and scheduled_ms is None is error",
        "and error is None",
        maria("any_outcomes or more_changes"),
    ),
    Mutant(
        "a job that has not ended is taken for one that just ends",
        MARIA,
        "        and finished_ms is not None\n",
        "",
        maria("any_outcomes or more_changes"),
    ),
    Mutant(
        "jobs that end at several moments are all finished at the first",
        MARIA,
        'finished = f"CASE {cases} ELSE {first:d} END" if others else f"{first:d}"',
        'finished = f"{first:d}"',
        maria("several_moments"),
    ),
    Mutant(
        "many rows: the status is not compared",
        MARIA,
        '" WHERE job.status = new.was AND job.attempt',
        '" WHERE job.attempt',
        maria("any_outcomes"),
    ),
    Mutant("many rows: the attempt is not compared", MARIA, " AND job.attempt = new.tried", "", maria("any_outcomes")),
    Mutant(
        "many rows: the due moment is not compared", MARIA, ' AND job.due_ms = new.until"', '"', maria("any_outcomes")
    ),
    Mutant(
        "what IGNORE ignores beside repeats is not looked at",
        MARIA,
        "                _check_warnings(cursor)\n",
        "                pass\n",
        (*ROWS, "-k", "ignore"),
    ),
    Mutant(
        "any warning is taken for a repeated key",
        MARIA,
        "        if code != DUPLICATE:\n",
        "        if False:\n",
        (*ROWS, "-k", "ignore"),
    ),
    Mutant(
        "a share lock locks nothing",
        MARIA,
        'lock = " FOR UPDATE" if exclusive else " LOCK IN SHARE MODE"',
        'lock = " FOR UPDATE" if exclusive else ""',
        orders("mariadb"),
    ),
    Mutant(
        "the exclusive lock is a share lock",
        MARIA,
        'lock = " FOR UPDATE" if exclusive else " LOCK IN SHARE MODE"',
        'lock = " LOCK IN SHARE MODE"',
        orders("mariadb"),
    ),
    Mutant(
        "transactions read one snapshot",
        MARIA_DRIVER,
        "TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        maria("committed_by_then"),
    ),
    Mutant(
        "an update that changes nothing counts as none",
        MARIA_DRIVER,
        "client_flag=CLIENT.FOUND_ROWS,",
        "client_flag=0,",
        maria("what_it_was"),
    ),
    Mutant(
        "values that do not fit are changed silently",
        MARIA_DRIVER,
        "SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
        "SESSION sql_mode = 'NO_ENGINE_SUBSTITUTION'",
        maria("does_not_fit"),
    ),
    Mutant(
        "a frozen transaction keeps its locks",
        MARIA_DRIVER,
        'cursor.execute(f"SET SESSION idle_transaction_timeout = {self.waits.idle_s}")',
        "pass",
        (*LOST, "-k", "frozen_transaction and mariadb"),
    ),
    Mutant(
        "keys that differ in case are one",
        MARIA_DRIVER,
        '"MariaDB": "utf8mb4_nopad_bin"',
        '"MariaDB": "utf8mb4_general_ci"',
        maria("case"),
    ),
    Mutant(
        "a key committed since the snapshot of a user's transaction is not seen",
        MARIA,
        '    newest = " LOCK IN SHARE MODE"\n',
        '    newest = ""\n',
        (*USERS, "-k", "since_the_transaction"),
    ),
    Mutant(
        "rows are found by reading the table from end to end",
        MARIA,
        'BY_KEY: Final = " FORCE INDEX (PRIMARY)"',
        'BY_KEY: Final = ""',
        ("tests/servers/test_by_key.py",),
    ),
    Mutant(
        "a statement waits for lock after lock without an end",
        MARIA_CONNECTION,
        "if lock_wait is None or not query.startswith(LIMITED):",
        "if True:",
        (
            "tests/servers/test_conflicts.py",
            "-k",
            "test_a_statement_that_waits_for_one_row_after_the_other_is_ended_by_the_server",
        ),
    ),
    Mutant(
        "a commit is cut short",
        MARIA_CONNECTION,
        'LIMITED: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")',
        'LIMITED: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "COMMIT")',
        ("tests/unit/test_lock_wait.py",),
        survives="the driver takes the limit away before it commits; that a commit is not in the list is the second "
        "line of defence",
    ),
    Mutant(
        "the limit of a transaction stays for its commit",
        MARIA_DRIVER,
        '        cast("Bounded", cursor).lock_wait = None\n        cursor.execute("COMMIT")',
        '        cursor.execute("COMMIT")',
        ("tests/unit/test_lock_wait.py",),
    ),
    Mutant(
        "an answer is left unread when the next statement cannot be put together",
        MARIA_CONNECTION,
        "        finally:  # a result left unread would be taken for that of the next statement\n"
        "            self._affected_rows",
        "        except ZeroDivisionError:\n            raise\n        else:\n            self._affected_rows",
        ROWS,
    ),
    # PostgreSQL
    Mutant(
        "a batch in which some jobs are tried again takes the short statement",
        POSTGRES,
        "if not all(map(_stays, rows)):",
        "if not any(map(_stays, rows)):",
        postgres("more_changes"),
    ),
    Mutant(
        "a new attempt is taken for no change",
        POSTGRES,
        "scheduled_ms is None and attempt == tried and due_ms == until",
        "scheduled_ms is None and due_ms == until",
        postgres("more_changes"),
    ),
    Mutant(
        "a new due moment is taken for no change",
        POSTGRES,
        "scheduled_ms is None and attempt == tried and due_ms == until",
        "scheduled_ms is None and attempt == tried",
        postgres("more_changes"),
    ),
    Mutant(
        "a new scheduled time is taken for no change",
        POSTGRES,
        "scheduled_ms is None and attempt == tried and due_ms == until",
        "attempt == tried and due_ms == until",
        postgres("more_changes"),
    ),
    Mutant(
        "PostgreSQL does not compare the status",
        POSTGRES,
        "WHERE job.id = new.id AND job.status = new.was AND",
        "WHERE job.id = new.id AND",
        postgres("any_outcomes"),
    ),
    Mutant(
        "PostgreSQL does not compare the attempt",
        POSTGRES,
        " AND job.attempt = new.tried AND",
        " AND",
        postgres("any_outcomes"),
    ),
    Mutant(
        "PostgreSQL does not compare the due moment",
        POSTGRES,
        ' AND job.due_ms = new.until"',
        '"',
        postgres("any_outcomes"),
    ),
    Mutant(
        "share locks exclude no other transaction",
        POSTGRES,
        'lock = "pg_advisory_xact_lock" if exclusive else "pg_advisory_xact_lock_shared"',
        'lock = "pg_advisory_xact_lock" if exclusive else "pg_try_advisory_xact_lock_shared"',
        orders("postgres"),
    ),
    Mutant(
        "exclusive locks are shared",
        POSTGRES,
        'lock = "pg_advisory_xact_lock" if exclusive else "pg_advisory_xact_lock_shared"',
        'lock = "pg_advisory_xact_lock_shared"',
        orders("postgres"),
    ),
    Mutant(
        "the line is read in the statement that waits for the lock",
        POSTGRES,
        '            f"SELECT {lock}(k) FROM unnest(ARRAY[{keys}]::bigint[]) AS k;"\n'
        '            f" SELECT {columns}, {SETTLED_VERSION} FROM scheduler_shards WHERE {_any_of(shards)}'
        ' ORDER BY app, shard"\n        )\n        cursor.nextset()  # type: ignore[attr-defined]\n',
        '            f"WITH held AS MATERIALIZED (SELECT COUNT({lock}(k)) AS n FROM '
        'unnest(ARRAY[{keys}]::bigint[]) AS k)"\n'
        '            f" SELECT {columns}, {SETTLED_VERSION} FROM scheduler_shards, held WHERE held.n >= 0 AND'
        ' ({_any_of(shards)}) ORDER BY app, shard"\n        )\n',
        orders("postgres"),
    ),
    Mutant(
        "locks are of the whole session",
        POSTGRES,
        'lock = "pg_advisory_xact_lock" if exclusive else "pg_advisory_xact_lock_shared"',
        'lock = "pg_advisory_lock" if exclusive else "pg_advisory_lock_shared"',
        orders("postgres"),
    ),
    Mutant(
        "transactions see one snapshot on PostgreSQL",
        POSTGRES_DRIVER,
        '"BEGIN ISOLATION LEVEL READ COMMITTED;"',
        '"BEGIN ISOLATION LEVEL REPEATABLE READ;"',
        postgres("committed_by_then"),
    ),
    Mutant(
        "a frozen transaction keeps its locks on PostgreSQL",
        POSTGRES_DRIVER,
        " SET LOCAL idle_in_transaction_session_timeout = '{idle_s}s'; SET LOCAL lock_timeout = '{{lock_ms:d}}ms';",
        " SET LOCAL idle_in_transaction_session_timeout = '600s'; SET LOCAL lock_timeout = '{{lock_ms:d}}ms';",
        (*LOST, "-k", "frozen_transaction and postgres"),
    ),
    Mutant(
        "a process that is frozen within a statement keeps its locks",
        POSTGRES_DRIVER,
        "        cursor.execute(END_STUCK, (self.waits.idle_s,))\n        return cursor.rowcount\n",
        "        return 0\n",
        (
            "tests/servers/test_lost_connections.py",
            "-k",
            "test_a_process_that_is_frozen_in_the_middle_of_a_statement_does_not_keep_its_locks",
        ),
    ),
    Mutant(
        "sessions of other programs are ended",
        POSTGRES_DRIVER,
        "AND application_name = current_setting('application_name')\"",
        'AND 1=1"',
        (*LOST, "-k", "somebody_else"),
    ),
    Mutant(
        "readers are ended",
        POSTGRES_DRIVER,
        " AND wait_event_type = 'Client' AND backend_xid IS NOT NULL\"",
        " AND wait_event_type = 'Client'\"",
        ("tests/servers/test_lost_connections.py", "-k", "test_a_long_answer_to_somebody_who_only_reads_is_left_alone"),
    ),
    # Both
    Mutant(
        "a commit without an answer is sent again",
        SESSION,
        '            self.close()\n            raise StoreUnavailable(\n                f"the answer to a commit',
        "            self.close()\n"
        "            raise error\n"
        "            raise StoreUnavailable(\n"
        '                f"the answer to a commit',
        (
            "tests/servers/test_lost_connections.py",
            "-k",
            "test_a_commit_without_an_answer_is_unknown_and_is_not_sent_again",
        ),
    ),
    Mutant(
        "a body that failed is committed",
        SESSION,
        "            self._undo(tx, error)\n            raise\n        self._commit(tx)\n",
        "            self._commit(tx)\n            raise\n        self._commit(tx)\n",
        maria("undoes"),
    ),
    Mutant(
        "a deadlock is passed on to the caller",
        SESSION,
        "            case Fault.AGAIN:\n                course.left += 1\n                _pause(course.tries)\n",
        "            case Fault.AGAIN:\n                raise self._entangled(course) from error\n",
        (*LOST, "-k", "opposite_order"),
    ),
    Mutant(
        "a connection that was lost before anything was sent is an error",
        SESSION,
        "case Fault.LOST if not (course.reconnected or lock_wait.over):",
        "case Fault.LOST if False:",
        (*LOST, "-k", "idle_connections"),
    ),
    Mutant(
        "a bulk insert that met a repeated row goes on failing",
        SESSION,
        "            tx.go_slowly()\n",
        "            pass\n",
        postgres("left_alone or key"),
    ),
    Mutant(
        "a table that was dropped by hand is taken for dropped properly",
        SESSION,
        "        if gone:\n",
        "        if False:\n",
        ("tests/servers/test_missing_tables.py",),
    ),
    Mutant(
        "a server that is silent is waited for without an end",
        POSTGRES_DRIVER,
        "elif time.monotonic() - heard_s > silence_s:",
        "elif False:",
        (*LOST, "-k", "silence and postgres"),
    ),
    Mutant(
        "a user's connection that commits every statement is taken",
        "store/sql/server/enqueue.py",
        "        if self._driver.commits_by_itself(dbapi):\n",
        "        if False:\n",
        (*USERS, "-k", "commits_every"),
    ),
    Mutant(
        "jobs are enqueued in another database than the store's",
        "store/sql/server/enqueue.py",
        "if not found or found[0] != _store_id(url):",
        "if not found:",
        (*USERS, "-k", "another_store"),
    ),
    Mutant(
        "tables are made within the user's transaction",
        "store/sql/server/enqueue.py",
        "                self._tables.make(missing.statements)\n",
        "                for statement in missing.statements.values():\n"
        "                    self._cursor.execute(statement)\n",
        (*USERS, "-k", "missing"),
    ),
    Mutant(
        "PostgreSQL: what waits is counted on several snapshots",
        POSTGRES,
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; ",
        "BEGIN READ ONLY; ",
        ("tests/contract/test_recount.py", "-k", "postgres"),
    ),
    Mutant(
        "MariaDB: what waits is counted on several snapshots",
        MARIA,
        '        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")\n',
        "",
        ("tests/contract/test_recount.py", "-k", "mariadb"),
    ),
    Mutant(
        "the rest of a table is not counted anew",
        "store/sql/looks.py",
        "            start = end\n",
        "            return\n",
        ("tests/contract/test_recount.py", "-k", "mariadb or postgres"),
    ),
)
