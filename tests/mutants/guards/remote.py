"""A store by the URL of a server: what is sent again, under which ids, and to whom."""

from tests.mutants.mutant import Mutant

LOST = ("tests/remote/test_lost_answers.py",)
CLIENT = ("tests/remote/test_remote_client.py",)
COMMANDS = ("tests/remote/test_remote_commands.py",)

MUTANTS = (
    Mutant(
        "what may not be repeated is sent again",
        "store/http/http_session.py",
        "(in_doubt and not request.repeatable)",
        "False",
        LOST,
    ),
    Mutant(
        "jobs without ids of their own count as repeatable",
        "store/http/http_store.py",
        "            key is not None or spec.idempotency_key is not None for spec",
        "            True for spec",
        LOST,
    ),
    Mutant(
        "every change is sent again",
        "store/http/http_store.py",
        "            repeatable=change is Change.CANCEL,\n",
        "",
        LOST,
    ),
    Mutant(
        "a refusal after a lost answer is taken for the answer",
        "store/http/http_session.py",
        '                if not in_doubt or request.method == "GET":\n                    raise\n',
        "                raise\n",
        LOST,
    ),
    Mutant(
        "what a proxy says after a lost answer is taken for the answer",
        "store/http/http_session.py",
        "(Unavailable, IdRefused, ConfigError, StoreMismatch, StoreBroken)",
        "(Unavailable, IdRefused)",
        (*LOST, "-k", "share_a_lost_answer"),
    ),
    Mutant(
        "jobs whose answer cannot be read count as refused",
        "store/http/http_session.py",
        '        if request.method == "GET":\n            raise mismatch\n',
        "        raise mismatch\n",
        (*LOST, "-k", "cannot_be_read"),
    ),
    Mutant(
        "jobs are sent without ids",
        "store/http/wire.py",
        "        id=None if key is None else key_text(key),\n",
        "",
        LOST,
    ),
    Mutant(
        "an id from outside is not checked",
        "store/sql/new_rows.py",
        "        if not on_time or not kept or drawn[6:8] != flags:\n",
        "        if False:\n",
        (*CLIENT, "-k", "does_not_fit"),
    ),
    Mutant(
        "an id from outside may name a shard that is not there",
        "store/sql/store.py",
        "            if spec.key is not None and shard_of(spec.key) >= self._apps[spec.app].shards:\n",
        "            if False:\n",
        (*CLIENT, "-k", "does_not_fit"),
    ),
    Mutant(
        "an id from outside may be that of another job",
        "store/sql/protocol/anybody.py",
        "        if payloads.get(row.key) != row.spec.payload:\n",
        "        if False:\n",
        (*CLIENT, "-k", "does_not_fit"),
    ),
    Mutant(
        "two tries in one transaction are two rows",
        "store/sql/new_rows.py",
        "        row = self._drawn.get(key)\n",
        "        row = None\n",
        (*CLIENT, "-k", "does_not_fit"),
    ),
    Mutant(
        "an id from outside may name a table of long ago",
        "store/sql/new_rows.py",
        "        on_time = due_ms >= now_ms - BEHIND_MS and (\n",
        "        on_time = (\n",
        (*CLIENT, "-k", "does_not_fit"),
    ),
    Mutant(
        "two jobs of one call may have one id",
        "store/sql/new_rows.py",
        "        elif row.spec != spec:\n",
        "        elif False:\n",
        (*CLIENT, "-k", "one_id"),
    ),
    Mutant(
        "ids are drawn by the clock of the client",
        "store/http/drawn_ids.py",
        "        now_ms = self._clock.wall_ms() + self._offset_ms\n",
        "        now_ms = self._clock.wall_ms()\n",
        (*CLIENT, "-k", "clock"),
    ),
    Mutant(
        "the digest of a job stays behind",
        "store/http/wire.py",
        "        digest=None if spec.idempotency_key is None else spec.digest.hex(),\n",
        "",
        (*CLIENT, "-k", "a_key_names_one_job"),
    ),
    Mutant(
        "a token goes where a redirect points",
        "store/http/http_session.py",
        "allow_redirects=False",
        "allow_redirects=True",
        (*COMMANDS, "-k", "somebody_else_points"),
    ),
    Mutant(
        "a password in the URL is sent or ignored",
        "store/http/http_address.py",
        "    if pieces.login is not None:\n",
        "    if False:\n",
        ("tests/unit/test_http_address.py",),
    ),
)
