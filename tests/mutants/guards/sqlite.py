"""What keeps jobs safe in a file of SQLite: durability, locks, and proofs of life."""

from tests.mutants.mutant import Mutant

DATABASE = "store/sql/sqlite/database.py"
DIALECT = "store/sql/sqlite/dialect.py"
FILE_LOCK = "store/sql/sqlite/file_lock.py"
IN_USE_FILE = "store/sql/sqlite/in_use.py"
LIVENESS = "store/sql/sqlite/liveness.py"
SESSION = "store/sql/sqlite/session.py"
ERRORS = "store/sql/sqlite/sqlite_errors.py"
TURNS = "store/sql/sqlite/turns.py"
ENQUEUE = "store/sql/enqueue.py"

DURABILITY = ("tests/integration/sqlite/test_sqlite_durability.py",)
PROCESSES = ("tests/integration/sqlite/test_sqlite_processes.py",)
SESSIONS = ("tests/integration/sqlite/test_sqlite_sessions.py",)
IN_USE = ("tests/integration/sqlite/test_sqlite_in_use.py",)
FAILURES = ("tests/integration/sqlite/test_sqlite_errors.py",)
TABLES = ("tests/integration/sqlite/test_sqlite_tables.py",)
UPKEEP = ("tests/integration/sqlite/test_sqlite_upkeep.py",)
STATEMENTS = ("tests/contract/test_statements.py", "-k", "inline")
USERS = ("tests/integration/test_enqueue.py",)


def statements(promise: str) -> tuple[str, ...]:
    """A part of the contract of the statements."""
    return ("tests/contract/test_statements.py", "-k", f"inline and ({promise})")


MUTANTS = (
    Mutant(
        "a commit does not wait for the disk", DATABASE, '"synchronous": "FULL"', '"synchronous": "NORMAL"', DURABILITY
    ),
    Mutant("nothing is ever synced", DATABASE, '"synchronous": "FULL"', '"synchronous": "OFF"', DURABILITY),
    Mutant("there is no write-ahead log", DATABASE, '"journal_mode": "WAL"', '"journal_mode": "MEMORY"', DURABILITY),
    Mutant(
        "the reader may write",
        DATABASE,
        '{"query_only": "ON", "temp_store"',
        '{"query_only": "OFF", "temp_store"',
        DURABILITY,
    ),
    Mutant(
        "a missing folder is found by the first write",
        DATABASE,
        "        check_location(self._path)\n",
        "",
        FAILURES,
    ),
    Mutant(
        "a node whose death was proven by no lock counts as proven dead",
        DATABASE,
        "return self._unlocked(nodes) if self._locks and self._locks.lasting else frozenset()",
        "return self._unlocked(nodes) if self._locks else frozenset()",
        PROCESSES,
    ),
    Mutant(
        "a close drops the lock of a node that still owns shards",
        DATABASE,
        'for nonce in self._nonces - await self.session("leave").read(named):',
        "for nonce in list(self._nonces):",
        PROCESSES,
    ),
    Mutant(
        "a transaction that writes takes its lock at the first write",
        SESSION,
        'self._connection.execute("BEGIN IMMEDIATE")',
        'self._connection.execute("BEGIN")',
        ("tests/simulation/test_interleavings.py", "-k", "promise_holds and sqlite"),
    ),
    Mutant(
        "a body that failed is committed",
        SESSION,
        "            except BaseException:\n"
        "                self._roll_back()\n"
        "                raise\n"
        "            else:",
        "            except BaseException:\n                self._commit()\n                raise\n            else:",
        statements("undoes"),
    ),
    Mutant(
        "a body that is run again is not undone first",
        SESSION,
        "            except RunAgain:\n                self._roll_back()\n",
        "            except RunAgain:\n                self._commit()\n",
        statements("else_a_transaction"),
    ),
    Mutant(
        "a commit that failed is told as certain",
        SESSION,
        "            raise in_doubt(error, self._path) from error\n",
        "            raise translated(error, self._path) from error\n",
        FAILURES,
    ),
    Mutant(
        "a full disk is told as unknown",
        ERRORS,
        "    if code_of(error) == sqlite3.SQLITE_FULL:\n        return translated(error, path)\n",
        "",
        FAILURES,
    ),
    Mutant(
        "a file that was replaced is still written to",
        SESSION,
        "        if self._moved():\n            self._roll_back()\n            raise replaced(None, self._path)\n",
        "",
        FAILURES,
    ),
    Mutant(
        "a lock of another process is an error at once",
        SESSION,
        "                if not is_busy(error):\n",
        "                if True:\n",
        (*SESSIONS, "-k", "overtaken"),
    ),
    Mutant(
        "a lock that is never free is waited for without an end",
        SESSION,
        "                if waited_s > LOCK_WAIT_S:\n",
        "                if False:\n",
        (*FAILURES, "-k", "held_too_long"),
    ),
    Mutant(
        "a file system without shared memory is taken",
        SESSION,
        'if name == "journal_mode" and answer == "delete":',
        "if False:",
        FAILURES,
        survives="needs a file system without shared memory, which the tests have not; SQLite then keeps no log, and "
        "commits are durable still",
    ),
    Mutant(
        "the waiting process is overtaken",
        TURNS,
        'waiting=FileTurn(folder / "turn", TURN_WAIT_S)',
        "waiting=ProcessTurn()",
        (*SESSIONS, "-k", "overtaken"),
    ),
    Mutant(
        "another process writes amid a transaction that has lost SQLite's lock",
        TURNS,
        'writing=FileTurn(folder / "write", WRITING_S)',
        "writing=ProcessTurn()",
        (*IN_USE, "-k", "amid_a_transaction"),
    ),
    Mutant(
        "the turn of a transaction is given back before it has ended",
        SESSION,
        "            self._turns.writing.take()  # until the transaction has ended\n",
        "            self._turns.writing.take()\n            self._turns.writing.give_back()\n",
        (*IN_USE, "-k", "amid_a_transaction"),
    ),
    Mutant(
        "two processes move the log at the same time",
        TURNS,
        'checkpointing=FileTurn(folder / "checkpoint", 0)',
        "checkpointing=ProcessTurn()",
        (*IN_USE, "-k", "move_the_log"),
    ),
    Mutant(
        "every transaction waits for a process that is stuck in its turn",
        TURNS,
        "self._next_wait = time.monotonic() + NEXT_WAIT * wait_s",
        "self._next_wait = 0.0",
        (*SESSIONS, "-k", "stuck"),
    ),
    Mutant(
        "a turn that is free again is not waited for any more",
        TURNS,
        "        self._next_wait = 0.0\n        return True\n",
        "        return True\n",
        (*SESSIONS, "-k", "in_vain"),
    ),
    Mutant(
        "a child that does not know of its copy keeps its parent's turn",
        TURNS,
        "                fcntl.flock(handle, fcntl.LOCK_UN)\n",
        "                pass\n",
        (*PROCESSES, "-k", "parents_turn"),
    ),
    Mutant(
        "a forked child ends its parent's turn",
        TURNS,
        "            turn.leave_to_parent()\n",
        "            turn.give_back()\n",
        (*PROCESSES, "-k", "parents_turn"),
    ),
    Mutant(
        "a process that does not use its turn holds up all others",
        TURNS,
        "            if time.monotonic() - began >= wait_s:",
        "            if time.monotonic() - began >= 1000:",
        (
            "tests/integration/sqlite/test_sqlite_sessions.py",
            "-k",
            "test_a_process_that_does_not_use_its_turn_holds_nobody_up_for_long",
        ),
    ),
    Mutant(
        "a forked child keeps its parent's turn",
        TURNS,
        "os.register_at_fork(after_in_child=_let_go)\n",
        "",
        (*PROCESSES, "-k", "fork"),
    ),
    Mutant(
        "the next process that closes the database removes its log",
        IN_USE_FILE,
        '((path, SHARED), (f"{path}-shm", OPEN))',
        '((f"{path}-shm", OPEN),)',
        (*IN_USE, "-k", "copied"),
    ),
    Mutant(
        "the next process that opens the database empties its shared memory",
        IN_USE_FILE,
        '((path, SHARED), (f"{path}-shm", OPEN))',
        "((path, SHARED),)",
        (*IN_USE, "-k", "copied"),
    ),
    Mutant(
        "the file is opened to find out which it is",
        IN_USE_FILE,
        "        file = _file(os.stat(name))  # noqa: PTH116 - opening it to find out would be too late\n",
        "        with open(name) as opened:\n            file = _file(os.fstat(opened.fileno()))\n",
        (*IN_USE, "-k", "own_connections or another_in_its_process"),
    ),
    Mutant(
        "a database in use stays so when its last store is closed",
        IN_USE_FILE,
        "                    file_lock.release(held.handle)\n",
        "                    pass\n",
        (*IN_USE, "-k", "last_one"),
    ),
    Mutant(
        "a store that is closed takes the locks of another in its process",
        IN_USE_FILE,
        "                if not held.users:\n",
        "                if True:\n",
        (*IN_USE, "-k", "another_in_its_process"),
    ),
    Mutant(
        "a store that is closed takes the locks of the program's own connections",
        IN_USE_FILE,
        "                if open_files.count(file) == 1:  # this one\n",
        "                if True:\n",
        (*IN_USE, "-k", "own_connections"),
    ),
    Mutant(
        "a forked child keeps the database in use",
        IN_USE_FILE,
        "            os.close(held.handle)\n    _held.clear()\n",
        "            pass\n    _held.clear()\n",
        (*IN_USE, "-k", "forked"),
        survives="its copies share the locks, which the parent releases by name",
    ),
    Mutant(
        "a database that cannot be locked is not told",
        IN_USE_FILE,
        "                    file_lock.tell_failed(name, error)\n",
        "                    pass\n",
        (*IN_USE, "-k", "said_once"),
    ),
    Mutant(
        "the lasting locks are still held when the last connection is closed",
        DATABASE,
        "            self._in_use.give_up()\n        transactions.close()\n",
        "            pass\n        transactions.close()\n",
        (*IN_USE, "-k", "last_one"),
    ),
    Mutant(
        "the handles of the lasting locks are closed before the connections",
        DATABASE,
        "            self._in_use.give_up()\n        transactions.close()\n",
        "            self._in_use.give_up()\n            self._in_use.close()\n        transactions.close()\n",
        (*IN_USE, "-k", "last_one or another"),
        survives="a file that is open elsewhere in the process, as by a connection, is not closed",
    ),
    Mutant(
        "a forked child believes that it holds its parent's locks",
        LIVENESS,
        "    _held.clear()\n",
        "",
        (*PROCESSES, "-k", "fork"),
    ),
    Mutant(
        "a forked child keeps its parent's locks",
        LIVENESS,
        "            os.close(handle)\n    _held.clear()\n",
        "            pass\n    _held.clear()\n",
        (*PROCESSES, "-k", "fork"),
    ),
    Mutant(
        "a lock file is visible before it is locked",
        LIVENESS,
        "        file_lock.lock(handle)\n"
        "        unready.rename(path)  # so that a visible lock file is already locked\n",
        "        unready.rename(path)\n        file_lock.lock(handle)\n",
        PROCESSES,
    ),
    Mutant(
        "a lock file that is missing proves a death",
        LIVENESS,
        "        except OSError:\n            return False\n        try:\n            return not",
        "        except OSError:\n            return True\n        try:\n            return not",
        (
            "tests/integration/sqlite/test_sqlite_processes.py",
            "-k",
            "test_a_node_is_dead_when_its_process_ended_and_not_before",
        ),
    ),
    Mutant(
        "a node of this process is asked by its lock, which is its own",
        LIVENESS,
        "        if path in _held:\n            return False\n",
        "",
        PROCESSES,
    ),
    Mutant(
        "a sweep deletes lock files of nodes that are still named",
        LIVENESS,
        "if path.stem not in keep and self._is_free(path):",
        "if self._is_free(path):",
        ("tests/integration/sqlite/test_sqlite_processes.py", "-k", "test_lock_files_that_nobody_needs_are_swept"),
    ),
    Mutant(
        "a sweep deletes lock files of living nodes",
        LIVENESS,
        "if path.stem not in keep and self._is_free(path):",
        "if path.stem not in keep:",
        ("tests/integration/sqlite/test_sqlite_processes.py", "-k", "test_lock_files_that_nobody_needs_are_swept"),
    ),
    Mutant(
        "locks go when any handle of their file is closed",
        FILE_LOCK,
        "OFD: Final = _has_ofd()",
        "OFD: Final = False",
        (*PROCESSES, "-k", "lock_file or dead"),
    ),
    # Statements
    Mutant(
        "many rows: the status is not compared",
        DIALECT,
        ' AND {table}.status = new.column8"',
        '"',
        statements("any_outcomes"),
    ),
    Mutant(
        "many rows: the attempt is not compared",
        DIALECT,
        'f" AND {table}.attempt = new.column9 AND {table}.due_ms = new.column10"',
        'f" AND {table}.due_ms = new.column10"',
        statements("any_outcomes"),
    ),
    Mutant(
        "many rows: the due moment is not compared",
        DIALECT,
        'f" AND {table}.attempt = new.column9 AND {table}.due_ms = new.column10"',
        'f" AND {table}.attempt = new.column9"',
        statements("any_outcomes"),
    ),
    Mutant(
        "a single row: the status is not compared",
        "store/sql/dialect.py",
        "WHERE id = ? AND status = ? AND attempt = ? AND due_ms = ?",
        "WHERE id = ? AND (status = ? OR 1=1) AND attempt = ? AND due_ms = ?",
        statements("any_outcomes"),
    ),
    Mutant(
        "a single row: the attempt is not compared",
        "store/sql/dialect.py",
        "WHERE id = ? AND status = ? AND attempt = ? AND due_ms = ?",
        "WHERE id = ? AND status = ? AND (attempt = ? OR 1=1) AND due_ms = ?",
        statements("any_outcomes"),
    ),
    Mutant(
        "a single row: the due moment is not compared",
        "store/sql/dialect.py",
        "WHERE id = ? AND status = ? AND attempt = ? AND due_ms = ?",
        "WHERE id = ? AND status = ? AND attempt = ? AND (due_ms = ? OR 1=1)",
        statements("any_outcomes"),
    ),
    Mutant(
        "rows that did not match are not looked for",
        "store/sql/job_rows.py",
        "elif self._dialect.update_many(self._cursor, table, list(map(_set, group))) != len(group):",
        "elif self._dialect.update_many(self._cursor, table, list(map(_set, group))) > len(group):",
        statements("any_outcomes"),
    ),
    Mutant(
        "rows whose table is gone are taken for set",
        "store/sql/job_rows.py",
        "                missed.update(update.key for update in group)\n",
        "                continue\n",
        statements("differ"),
    ),
    Mutant(
        "a key that exists is overwritten",
        DIALECT,
        'f"INSERT OR IGNORE INTO {table}',
        'f"INSERT OR REPLACE INTO {table}',
        statements("left_alone"),
    ),
    Mutant(
        "ended rows are scanned",
        "store/sql/scans.py",
        "        condition = f\"status = '{PENDING}'\"\n",
        '        condition = "1=1"\n',
        statements("settled"),
    ),
    Mutant(
        "rows of other shards are scanned",
        "store/sql/scans.py",
        "if len(scan.shards) < self._shape(scan.app)[0]:",
        "if False:",
        statements("shards"),
    ),
    Mutant(
        "a position that two jobs share is split between pages",
        "store/sql/scans.py",
        "if i and (i >= scan.limit or room <= 0) and position != found[i - 1][0]:",
        "if i and (i >= scan.limit or room <= 0):",
        statements("share"),
    ),
    Mutant(
        "entries whose rows have ended are scanned",
        "store/sql/scans.py",
        "return [(position, head) for position, head in pending if head.status is Status.PENDING]",
        "return pending",
        statements("entries"),
        survives="their rows are read once more, and only if they are pending: `_loaded`",
    ),
    Mutant(
        "an app with jobs far ahead counts as one without jobs",
        "store/sql/scans.py",
        "filter(self._has, (later_table(scan.app), moved_table(scan.app)))",
        "filter(self._has, (moved_table(scan.app),))",
        statements("without_rows"),
    ),
    Mutant(
        "an app with moved jobs counts as one without jobs",
        "store/sql/scans.py",
        "filter(self._has, (later_table(scan.app), moved_table(scan.app)))",
        "filter(self._has, (later_table(scan.app),))",
        statements("without_rows"),
    ),
    Mutant(
        "jobs of the first day of a range are overlooked where many apps are asked for",
        "store/sql/scans.py",
        "for period in self._periods(scan.app) if first <= period <= last]",
        "for period in self._periods(scan.app) if first < period <= last]",
        statements("without_rows"),
    ),
    Mutant(
        "looks at many apps fill the cache of statements",
        DIALECT,
        "    ranges_at_once = 1 ",
        "    ranges_at_once = 300 ",
        (*TABLES, "-k", "looks_at_many"),
    ),
    Mutant(
        "an app that exists is given the shards that are asked for",
        "store/sql/cluster_rows.py",
        "            if inserted == 1:\n",
        "            if True:\n",
        statements("app_that_is_there"),
    ),
    Mutant(
        "an app whose tables are missing counts as complete",
        "store/sql/store.py",
        "for info in tx.read_apps() if tx.has_tables_of(info.name)}",
        "for info in tx.read_apps()}",
        (*TABLES, "-k", "registered_again"),
    ),
    Mutant(
        "apps are added beside one that is refused",
        "store/sql/store.py",
        "            self._registered(found[app], apps[app])  # it may be refused, and then no app is added\n",
        "            pass\n",
        ("tests/contract/test_store_contract.py", "-k", "Sqlite and one_of_many_apps"),
    ),
    Mutant(
        "a request is consumed twice",
        "store/sql/request_rows.py",
        'if self._run("DELETE FROM scheduler_requests WHERE id = ?", (request,))}',
        'if self._run("DELETE FROM scheduler_requests WHERE id = ?", (request,)) + 1}',
        statements("consumed"),
    ),
    Mutant(
        "the last job with an idempotency key has it",
        "store/sql/request_rows.py",
        "            others |= {key: held[key] for _, key, id_, *_ in claims if key in held and held[key][0] != id_}\n",
        "",
        statements("key"),
    ),
    Mutant(
        "a job that claims its key again is a repeat of itself",
        "store/sql/request_rows.py",
        "if key in held and held[key][0] != id_}",
        "if key in held}",
        statements("key"),
    ),
    Mutant(
        "a node overwrites what operators ask of it",
        "store/sql/cluster_rows.py",
        '    "held_back",\n)',
        '    "held_back",\n    "drain_asked",\n)',
        statements("node"),
    ),
    Mutant(
        "an app that exists is changed",
        "store/sql/cluster_rows.py",
        'self._dialect.insert("scheduler_apps", APP, ignore=True)',
        'self._dialect.upsert("scheduler_apps", APP, ("name",))',
        statements("app"),
    ),
    Mutant(
        "the version of ownership does not see a release",
        "store/sql/cluster_rows.py",
        "SUM(CASE WHEN owner_nonce = '' THEN 1 ELSE 0 END)",
        "0",
        statements("version"),
    ),
    # A user's own transaction
    Mutant(
        "a connection that commits every statement is taken",
        ENQUEUE,
        "if driver.isolation_level is None and not driver.in_transaction:",
        "if False:",
        USERS,
    ),
    Mutant(
        "jobs are enqueued in the file of another store",
        ENQUEUE,
        'if path != MEMORY and os.path.realpath(files.get("main", "")) != os.path.realpath(path):',
        "if False:",
        USERS,
    ),
    Mutant(
        "a refused call leaves a part of it in the user's transaction",
        ENQUEUE,
        '        driver.execute("ROLLBACK TO infinite_scheduler")\n',
        "        pass\n",
        USERS,
    ),
)
