"""The HTTP door: who may come in, how much is taken at once, and what is shown."""

from tests.mutants.mutant import Mutant

ACCESS = ("tests/api/test_access.py",)
JOBS = ("tests/api/test_jobs.py",)
SERVER = ("tests/api/test_server.py",)
BULK = ("tests/api/test_bulk.py",)
EVENTS = ("tests/api/test_events.py",)
LEDGER = ("tests/api/test_ledger.py",)
HEALTH = ("tests/api/test_health.py",)

MUTANTS = (
    Mutant(
        "a foreign host is answered on loopback",
        "api/access.py",
        "        if name not in self._hosts:\n",
        "        if False:\n",
        (*ACCESS, "-k", "foreign"),
    ),
    Mutant(
        "a token may do what its role does not include",
        "api/access.py",
        "        if _RANK[actor.role] < _RANK[role]:\n",
        "        if False:\n",
        (*ACCESS, "-k", "includes"),
    ),
    Mutant(
        "without tokens a server that others can reach is open",
        "api/access.py",
        "        if not known and self._loopback:\n",
        "        if not known:\n",
        (*ACCESS, "-k", "stays_closed"),
    ),
    Mutant(
        "a revoked token is let in",
        "api/access.py",
        "        return [*self._configured, *(token for token in self._stored if token.revoked_ms is None)]\n",
        "        return [*self._configured, *self._stored]\n",
        survives="the comparison of tokens leaves out revoked ones too",
        tests=(*ACCESS, "-k", "revoked"),
    ),
    Mutant(
        "the store's tokens are read once for ever",
        "api/access.py",
        "        return self._read_ms is None or self._clock.steady_ms() - self._read_ms >= FRESH_MS\n",
        "        return self._read_ms is None\n",
        (*ACCESS, "-k", "store"),
    ),
    Mutant(
        "wrong tokens may be tried without end",
        "api/access.py",
        "            self._failures.note(address)\n",
        "",
        (*ACCESS, "-k", "wrong"),
    ),
    Mutant(
        "a form of another page may change something",
        "api/body.py",
        '        if request.content_type not in types or "Content-Type" not in request.headers:\n',
        "        if False:\n",
        (*ACCESS, "-k", "form"),
    ),
    Mutant(
        "a body may be of any length",
        "api/body.py",
        "                if size > most:\n",
        "                if False:\n",
        (*SERVER, "-k", "endless"),
    ),
    Mutant(
        "unfinished bodies have no bound together",
        "api/body.py",
        "                if self._held > self._together and size < self._held:\n",
        "                if False:\n",
        (*SERVER, "-k", "together"),
    ),
    Mutant(
        "any number of connections may be open",
        "api/connections.py",
        "        if len(self._server.connections) >= self._most:\n",
        "        if False:\n",
        (*SERVER, "-k", "too_many"),
    ),
    Mutant(
        "any number of jobs may wait for a commit",
        "api/api_context.py",
        "waiting.jobs + jobs > self.limits.queue or ",
        "",
        (*JOBS, *BULK, "-k", "wait_for_a_commit or full_queue"),
    ),
    Mutant(
        "a call that has ended still counts as waiting",
        "ingest/intake.py",
        "                self._count(calls, -1)\n",
        "",
        (*JOBS, "-k", "wait_for_a_commit"),
    ),
    Mutant(
        "the later of two equal names counts",
        "api/json_text.py",
        "    if repeated is not None:\n",
        "    if False:\n",
        (*JOBS, *BULK, "-k", "refused"),
    ),
    Mutant(
        "a long list is decoded without a turn of the event loop",
        "api/bulk_operations.py",
        "        if len(parsed) % AT_ONCE == 0:\n",
        "        if False:\n",
        (*BULK, "-k", "turns"),
    ),
    Mutant(
        "a list may have any number of jobs",
        "api/bulk_operations.py",
        "        if len(parsed) >= api.limits.batch:\n",
        "        if False:\n",
        (*BULK, "-k", "too_many"),
    ),
    Mutant(
        "any number of event streams may be open",
        "api/event_streams.py",
        "        if self._listening >= self._most:\n",
        "        if False:\n",
        (*EVENTS, "-k", "too_many"),
    ),
    Mutant(
        "each who looks reads the store",
        "api/overview.py",
        "            if self._seen is None or now_ms - self._seen.steady_ms >= self.every_ms:\n",
        "            if True:\n",
        (*EVENTS, "-k", "once"),
    ),
    Mutant(
        "each listener looks at the store by itself",
        "api/event_streams.py",
        "            if self._looking is None:\n",
        "            if True:\n",
        (*EVENTS, "-k", "who_listen or far_behind"),
    ),
    Mutant(
        "a listener that is far behind misses rounds without a word",
        "api/event_streams.py",
        "        if missed > 0:\n",
        "        if False:\n",
        (*EVENTS, "-k", "far_behind"),
    ),
    Mutant(
        "a listener that does not read is waited for without end",
        "api/event_writer.py",
        "    async with asyncio.timeout(SLOW_READER_S):\n",
        "    async with asyncio.timeout(None):\n",
        (*EVENTS, "-k", "does_not_read"),
    ),
    Mutant(
        "the store is looked at when no one listens any more",
        "api/event_streams.py",
        "            looking.cancel()\n            await asyncio.wait({looking})\n",
        "            pass\n",
        (*EVENTS, "-k", "far_behind or once"),
    ),
    Mutant(
        "any number of failures are remembered",
        "observe/recent_failures.py",
        "deque(maxlen=MOST)",
        "deque()",
        (*EVENTS, "-k", "up_to_a_bound"),
    ),
    Mutant(
        "a forecast is kept for ever",
        "api/forecast_cache.py",
        "(kept.asked_ms <= before_ms or ",
        "(",
        (*LEDGER, "-k", "forecast"),
    ),
    Mutant(
        "a forecast that failed is kept",
        "api/forecast_cache.py",
        " or made.exception() is not None)",
        ")",
        (*LEDGER, "-k", "forecast"),
    ),
    Mutant(
        "any number of forecasts is kept",
        "api/forecast_cache.py",
        "        if len(self._kept) > MOST:\n",
        "        if False:\n",
        (*LEDGER, "-k", "forecast"),
    ),
    Mutant(
        "jobs of a paused app are an alarm",
        "views/alarm.py",
        " if name not in paused}",
        "}",
        (*HEALTH, "-k", "paused"),
    ),
    Mutant(
        "data is shown to everyone",
        "api/job_operations.py",
        '    return api.payloads == "shown" or (api.payloads == "operators" and actor.role is Role.OPERATE)\n',
        "    return True\n",
        (*ACCESS, "-k", "data"),
    ),
    Mutant(
        "of an unexpected error the text is told",
        "api/problem.py",
        "    return msgspec.structs.replace(_problem(UNEXPECTED, detail), incident=incident)\n",
        "    return _problem(UNEXPECTED, detail)\n",
        (*SERVER, "-k", "unexpected"),
    ),
    Mutant(
        "compressed bodies are unpacked",
        "api/http_server.py",
        "            auto_decompress=False,\n",
        "",
        survives="a body with a Content-Encoding is refused before it is read",
        tests=(*SERVER, "-k", "compressed"),
    ),
)
