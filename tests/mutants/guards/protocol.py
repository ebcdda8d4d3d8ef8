"""The transactions of the line protocol, and the way of a change request to its decision."""

from tests.mutants.mutant import Mutant

ANYBODY = "store/sql/protocol/anybody.py"
OWNER = "store/sql/protocol/owner.py"
REQUESTS = "store/sql/change_requests.py"
STORE = "store/sql/store.py"

RULES = ("tests/contract/test_protocol_rules.py",)
ORDERS = ("tests/simulation/test_interleavings.py", "-k", "promise_holds and simulated")
CONTRACT = ("tests/contract/test_store_contract.py::TestSqliteInline",)
CLOSE = ("tests/servers/test_client_close.py",)
NODES = ("tests/unit/test_engine_interleavings.py",)


def contract(promise: str) -> tuple[str, ...]:
    """A part of the contract of a store."""
    return (*CONTRACT, "-k", promise)


MUTANTS = (
    # Inserts
    Mutant(
        "an insert before the line wakes nobody",
        ANYBODY,
        "row.key < lines[shard]]",
        "False]",
        contract("wake or early"),
    ),
    Mutant(
        "an insert wakes for its first early row only",
        ANYBODY,
        "wakes = [wake(shard, keys) for shard, keys in early.items() if keys]",
        "wakes = [wake(shard, keys[:1]) for shard, keys in early.items() if keys]",
        ORDERS,
    ),
    Mutant(
        "an insert wakes one of its shards only",
        ANYBODY,
        "    tx.insert_requests(wakes)\n",
        "    tx.insert_requests(wakes[:1])\n",
        ORDERS,
    ),
    Mutant(
        "an insert locks no shard",
        ANYBODY,
        "shards = tx.lock_shards(chunks.keys(), exclusive=False)",
        "shards = {info.shard: info for info in tx.read_shards()}",
        ORDERS,
    ),
    Mutant(
        "a user's own transaction wakes nobody",
        ANYBODY,
        "tx.insert_requests([wake(shard, [row.key for row in rows]) for shard, rows in fresh.items() if rows])",
        "pass",
        ORDERS,
    ),
    Mutant(
        "a repeated idempotency key inserts its row again",
        ANYBODY,
        "(shard.app, row.spec.idempotency_key) not in repeats]",
        "True]",
        contract("idempot or repeat or key"),
    ),
    Mutant(
        "a repeated key with another content is no conflict",
        ANYBODY,
        "if strict and first.digest != row.spec.digest:",
        "if False:",
        contract("key or content"),
    ),
    Mutant(
        "an insert into an app that does not exist is taken",
        ANYBODY,
        "            raise UnknownApp(shard.app, [app.name for app in tx.read_apps()])\n",
        "            continue\n",
        contract("unknown"),
        survives="the store looks the app up before it makes keys; the check under the lock is for an app that goes "
        "between the two, and apps are never deleted",
    ),
    Mutant(
        "jobs are not counted when they are accepted",
        ANYBODY,
        "    count_accepted(tx, new, now_ms)\n    return Inserted(repeats=repeats, woken=frozenset(q.shard",
        "    return Inserted(repeats=repeats, woken=frozenset(q.shard",
        contract("count"),
    ),
    # Changes by anybody
    Mutant(
        "a change locks no shard",
        ANYBODY,
        "shards = tx.lock_shards({change_request.shard for change_request in change_requests}, exclusive=exclusive)",
        "shards = {info.shard: info for info in tx.read_shards()}",
        ORDERS,
    ),
    Mutant(
        "a change before the line is decided without its owner",
        ANYBODY,
        "head.due_ms >= shard.line_ms or (exclusive and shard.released)",
        "head.due_ms >= 0 or (exclusive and shard.released)",
        contract("before_the_line"),
    ),
    Mutant(
        "the line itself belongs to the owner",
        ANYBODY,
        "head.due_ms >= shard.line_ms or",
        "head.due_ms > shard.line_ms or",
        contract("line_itself"),
    ),
    Mutant(
        "a released shard is decided under the share lock",
        ANYBODY,
        "(exclusive and shard.released)",
        "shard.released",
        ORDERS,
    ),
    Mutant(
        "under the exclusive lock it is not checked again that a shard is released",
        ANYBODY,
        "(exclusive and shard.released)",
        "exclusive",
        RULES,
    ),
    Mutant(
        "a direct change leaves no verdict",
        ANYBODY,
        "        tx.write_decisions({change_request.id: True for change_request in granted}, granted[0].now_ms)\n",
        "        pass\n",
        RULES,
    ),
    Mutant(
        "a cancel or a retry by hand leaves the mark of the attempt",
        ANYBODY,
        "    tx.delete_marks((q.shard, q.key) for q in granted if q.change in (Change.CANCEL, Change.RETRY))\n",
        "",
        contract("mark"),
    ),
    Mutant(
        "a job that is moved loses its mark",
        ANYBODY,
        "for q in granted if q.change in (Change.CANCEL, Change.RETRY))",
        "for q in granted)",
        contract("mark"),
    ),
    Mutant(
        "a request in doubt is not withdrawn before it is asked again",
        ANYBODY,
        "    tx.delete_requests(doubtful)\n",
        "",
        RULES,
    ),
    Mutant(
        "what was decided about a request in doubt does not count",
        ANYBODY,
        "        if change_request.id in state:\n            continue\n",
        "",
        RULES,
    ),
    Mutant(
        "a row that has changed meanwhile is taken for changed as asked",
        ANYBODY,
        "    if tx.update_jobs(change_request.app, [update]):\n        return RequestState.AGAIN\n",
        "    tx.update_jobs(change_request.app, [update])\n",
        contract("at_once or settled or reschedules"),
        survives="the row was read under the lock of its shard, so that nothing that keeps the protocol changes it",
    ),
    Mutant(
        "a direct reschedule to before the line wakes nobody",
        ANYBODY,
        "    if update.status is Status.PENDING and update.due_ms < shard.line_ms:\n",
        "    if False:\n",
        contract("wakes_the_owner"),
    ),
    Mutant(
        "an ended job can be changed",
        ANYBODY,
        "    if head.status.final and change is not Change.RETRY:\n        return None\n",
        "",
        contract("settled or cancelled"),
    ),
    Mutant(
        "a retry by hand counts as the same attempt",
        ANYBODY,
        "attempt=head.attempt + 1 if change is Change.RETRY else head.attempt",
        "attempt=head.attempt",
        contract("retry_by_hand"),
    ),
    Mutant(
        "a job that waits or is done can be retried by hand",
        ANYBODY,
        "if change_request.change is Change.RETRY and head.status in (Status.PENDING, Status.DONE):",
        "if False:",
        contract("retry"),
    ),
    Mutant(
        "a run now of a due job moves it",
        ANYBODY,
        "    if change is Change.RUN_NOW and head.due_ms <= now_ms:\n        return None\n",
        "",
        contract("run_now"),
    ),
    Mutant(
        "a run now changes the scheduled time",
        ANYBODY,
        "scheduled_ms=due_ms if change is Change.RESCHEDULE else None",
        "scheduled_ms=due_ms",
        contract("run_now"),
    ),
    Mutant(
        "a moved job leaves no entry at its new moment",
        ANYBODY,
        "        tx.insert_entries(app, [(position(head.key, update.due_ms), head.key)])\n",
        "        pass\n",
        ORDERS,
    ),
    Mutant(
        "a caller that gives up does not look for the decision",
        ANYBODY,
        "change_request.id: decisions.get(change_request.id) for",
        "change_request.id: None for",
        ORDERS,
    ),
    Mutant(
        "a caller that gives up leaves its request",
        ANYBODY,
        "taken_back = tx.delete_requests([change_request.id for change_request in change_requests])",
        "taken_back: Collection[bytes] = ()",
        RULES,
    ),
    Mutant(
        "a caller in doubt that gives up does not wait for its open transaction",
        ANYBODY,
        "exclusive=doubtful)",
        "exclusive=False)",
        CLOSE,
    ),
    Mutant(
        "a change that had no answer is not in doubt",
        REQUESTS,
        "                pending.doubt = True\n",
        "",
        ("tests/unit/test_change_in_doubt.py",),
    ),
    Mutant(
        "an error that is worth another try is passed on at once",
        REQUESTS,
        'if getattr(error, "retryable", False) and now_ms < pending.deadline_ms:',
        "if False:",
        ("tests/unit/test_change_in_doubt.py",),
    ),
    Mutant(
        "a change in doubt that is given up is said to be unchanged",
        REQUESTS,
        "_refuse(pending, unknown(error) if pending.doubt else error)",
        "_refuse(pending, error)",
        ("tests/unit/test_change_in_doubt.py",),
    ),
    Mutant(
        "a closed client does not withdraw what it has asked",
        REQUESTS,
        "                await asyncio.wait_for(self._give_up(list(self._asked.values())), CLOSE_S)\n",
        "                await asyncio.sleep(0)\n",
        contract("closes"),
    ),
    Mutant(
        "a client that closes does not wait for the transaction under way",
        REQUESTS,
        "            await asyncio.wait([task], timeout=CLOSE_S)\n",
        "",
        CLOSE,
    ),
    # The owner: fence
    Mutant(
        "the fence does not compare the owner",
        OWNER,
        "if row.owner == owners[shard]}",
        "if True}",
        ORDERS,
    ),
    Mutant(
        "the fence compares the nonce and not the epoch",
        OWNER,
        "if row.owner == owners[shard]}",
        "if row.owner.nonce == owners[shard].nonce}",
        contract("former_time"),
    ),
    Mutant(
        "the fence takes the shared lock where the exclusive one was asked for",
        OWNER,
        "rows = tx.lock_shards(owners.keys(), exclusive=exclusive)",
        "rows = tx.lock_shards(owners.keys(), exclusive=False)",
        ORDERS,
    ),
    # Takeover
    Mutant(
        "a takeover does not lock exclusively",
        OWNER,
        "rows = tx.lock_shards({claim.shard for claim in claims}, exclusive=True)",
        "rows = tx.lock_shards({claim.shard for claim in claims}, exclusive=False)",
        ORDERS,
    ),
    Mutant(
        "a takeover does not compare the owner that was seen",
        OWNER,
        "if row is None or row.owner != claim.seen:",
        "if row is None:",
        contract("claim or two_nodes"),
    ),
    Mutant(
        "a takeover does not look at the heartbeat again",
        OWNER,
        "        if not abandoned and beats.get(row.owner.nonce) != claim.beat:\n"
        "            continue  # its heartbeat has changed since, or it sent its first one\n",
        "",
        contract("claim"),
    ),
    Mutant(
        "a takeover reads the heartbeats before it has its locks",
        OWNER,
        "    rows = tx.lock_shards({claim.shard for claim in claims}, exclusive=True)\n"
        "    beats = {node.nonce: node.beat for node in tx.read_nodes()}\n",
        "    beats = {node.nonce: node.beat for node in tx.read_nodes()}\n"
        "    rows = tx.lock_shards({claim.shard for claim in claims}, exclusive=True)\n",
        ORDERS,
    ),
    Mutant(
        "a takeover keeps the epoch",
        OWNER,
        "owner=Owner(nonce, row.owner.epoch + 1)))",
        "owner=Owner(nonce, row.owner.epoch)))",
        contract("epoch"),
    ),
    Mutant(
        "a takeover without a release is called clean",
        OWNER,
        "unclean={row.shard for row in taken if not rows[row.shard].released})",
        "unclean=())",
        contract("clean"),
    ),
    Mutant(
        "a grant names no suspects",
        OWNER,
        "suspects=marks.get(row.shard, {}),",
        "suspects={},",
        contract("suspects"),
    ),
    # Release, reload, advance
    Mutant(
        "a release starts the epochs anew",
        OWNER,
        "owner=Owner(NO_OWNER, row.owner.epoch), low_ms",
        "owner=Owner(NO_OWNER, 0), low_ms",
        contract("release or claim"),
    ),
    Mutant(
        "a release does not lift the mark of a job that did not fly",
        OWNER,
        "    lift_marks(tx, mine, (), lifted)\n",
        "",
        contract("mark"),
    ),
    Mutant(
        "a reload does not lift the mark of a job that did not fly",
        OWNER,
        "    lift_marks(tx, mine, handed_over, lifted)\n",
        "",
        contract("mark"),
    ),
    Mutant(
        "the mark of a job that flies alone is lifted too",
        OWNER,
        "if size in lifted and key not in handed_over",
        "if size in lifted",
        contract("mark"),
    ),
    Mutant(
        "a release locks nothing",
        OWNER,
        "    mine, _ = owned(tx, owners, exclusive=True)\n    lift_marks(tx, mine, (), lifted)",
        "    mine = {info.shard: info for info in tx.read_shards() if owners.get(info.shard) == info.owner}\n"
        "    lift_marks(tx, mine, (), lifted)",
        ORDERS,
    ),
    Mutant(
        "a release does not lock exclusively",
        OWNER,
        "    mine, _ = owned(tx, owners, exclusive=True)\n    lift_marks(tx, mine, (), lifted)",
        "    mine, _ = owned(tx, owners, exclusive=False)\n    lift_marks(tx, mine, (), lifted)",
        ORDERS,
        survives="the share lock keeps all others from writing the shard row; exclusive from the start is against the "
        "deadlock of two upgrades, which `exclusive_from_start` shows in tests/model",
    ),
    Mutant(
        "a reload does not wait for open transactions",
        OWNER,
        "    mine, _ = owned(tx, owners, exclusive=True)\n    lift_marks(tx, mine, handed_over, lifted)",
        "    mine, _ = owned(tx, owners, exclusive=False)\n    lift_marks(tx, mine, handed_over, lifted)",
        ORDERS,
    ),
    Mutant(
        "an advance does not lock exclusively",
        OWNER,
        "mine, lost = owned(tx, {step.shard: step.owner for step in steps}, exclusive=True)",
        "mine, lost = owned(tx, {step.shard: step.owner for step in steps}, exclusive=False)",
        ORDERS,
    ),
    Mutant(
        "a line can move back",
        OWNER,
        "line_ms=max(step.line_ms, mine[step.shard].line_ms), low_ms=step.low_ms",
        "line_ms=step.line_ms, low_ms=step.low_ms",
        contract("line or advance"),
    ),
    # Scan
    Mutant(
        "a scan takes a row that has moved on",
        OWNER,
        "    return job.position == job.key\n",
        "    return True\n",
        RULES,
    ),
    Mutant(
        "a scan takes an entry that is stale",
        OWNER,
        "    return job.position == position\n",
        "    return True\n",
        RULES,
    ),
    Mutant(
        "the entries of a page are read beyond its rows",
        OWNER,
        "end=rows_end or wanted.end",
        "end=wanted.end",
        RULES,
    ),
    Mutant(
        "a page keeps jobs from behind its end",
        OWNER,
        "return Page(jobs=[job for job in jobs if job.position < end], next=end)",
        "return Page(jobs=jobs, next=end)",
        contract("page or pages or scan or room"),
    ),
    Mutant(
        "a page ends where the later of its two sources ended",
        OWNER,
        "    end = min(ends)\n",
        "    end = max(ends)\n",
        contract("page or pages or scan or room or entr"),
    ),
    # Answers
    Mutant(
        "an answer does not lock exclusively",
        OWNER,
        "    mine, lost = owned(tx, owners, exclusive=True)\n    waiting",
        "    mine, lost = owned(tx, owners, exclusive=False)\n    waiting",
        ORDERS,
        survives="the share lock would do for what is promised; the exclusive one is against the deadlock of two "
        "upgrades, which `exclusive_from_start` shows in tests/model",
    ),
    Mutant(
        "an answer does not lower low",
        OWNER,
        "                low_ms[request.shard] = min(low_ms[request.shard], head.due_ms)\n",
        "                pass\n",
        ORDERS,
    ),
    Mutant(
        "an answer takes jobs from behind the line",
        OWNER,
        "if head.due_ms < mine[request.shard].line_ms and head.key not in handed_over:",
        "if head.key not in handed_over:",
        ORDERS,
    ),
    Mutant(
        "a woken job that is handed over is taken again",
        OWNER,
        "if head.due_ms < mine[request.shard].line_ms and head.key not in handed_over:",
        "if head.due_ms < mine[request.shard].line_ms:",
        contract("wake or woken or handed"),
        survives="the window takes no job that it already has: `held_job_is_not_taken_again`, in "
        "tests/unit/test_engine_rules.py",
    ),
    Mutant(
        "a request that was withdrawn is decided",
        OWNER,
        "    if not claimed or head is None or change is None or key in handed_over:\n",
        "    if head is None or change is None or key in handed_over:\n",
        RULES,
    ),
    Mutant(
        "rows of withdrawn requests are read, and decided",
        OWNER,
        "heads = read_named(tx, [request for request in waiting if request.id in claimed])",
        "heads = read_named(tx, waiting)",
        RULES,
        survives="`decide` refuses what is not claimed; without both, "
        "test_a_request_that_was_taken_back_is_not_decided fails",
    ),
    Mutant(
        "a job that is handed over can be cancelled",
        OWNER,
        "    if not claimed or head is None or change is None or key in handed_over:\n",
        "    if not claimed or head is None or change is None:\n",
        contract("too_late"),
    ),
    Mutant(
        "the owner's decisions are not written",
        OWNER,
        "    tx.write_decisions({decision.request.id: decision.granted for decision in decisions if "
        "decision.claimed}, now_ms)\n",
        "",
        (*RULES, *CONTRACT[:1], "-k", "owner or asked_again or verdict"),
    ),
    Mutant(
        "a second request about a job sees the row as it was before the first",
        OWNER,
        "    heads[key] = msgspec.structs.replace(head, due_ms=update.due_ms, attempt=update.attempt, "
        "status=update.status)\n",
        "",
        contract("together"),
    ),
    Mutant(
        "a cancel by the owner leaves the mark",
        OWNER,
        "    if update.status.final:\n        tx.delete_marks(",
        "    if False:\n        tx.delete_marks(",
        contract("mark"),
    ),
    Mutant(
        "jobs for which there is no room are forgotten",
        OWNER,
        "            left.append((shard, head.position))\n",
        "            continue\n",
        contract("room"),
    ),
    # Settle
    Mutant(
        "a settle lowers low under the share lock",
        OWNER,
        "    if low_ms and not exclusive:\n        return None\n",
        "",
        ORDERS,
    ),
    Mutant(
        "a retry before low leaves low where it is",
        OWNER,
        "    tx.write_shards(msgspec.structs.replace(mine[shard], low_ms=low) for shard, low in low_ms.items())\n",
        "",
        contract("low"),
    ),
    Mutant(
        "low is lowered to the last retry before it, not to the earliest",
        OWNER,
        "s.due_ms < low_ms.get(s.shard, mine[s.shard].low_ms)",
        "s.due_ms < mine[s.shard].low_ms",
        contract("low"),
    ),
    Mutant(
        "outcomes of lost shards are recorded",
        OWNER,
        "        if s.shard in mine:\n            groups.setdefault(s.job.app, []).append(s)",
        "        if True:\n            groups.setdefault(s.job.app, []).append(s)",
        ORDERS,
    ),
    Mutant(
        "running attempts are not fenced",
        OWNER,
        "        if Shard(r.job.app, r.job.shard) in mine:\n            attempt",
        "        if True:\n            attempt",
        contract("shows_no"),
    ),
    Mutant(
        "an outcome that met no row is taken for recorded",
        OWNER,
        "        missed.update(s.shard for s in group if s.job.key in gone)\n",
        "",
        contract("told"),
    ),
    Mutant(
        "what belongs to an outcome that met no row is written",
        OWNER,
        "recorded = [s for s in group if s.job.key not in gone] if gone else group",
        "recorded = group",
        contract("told"),
    ),
    Mutant(
        "a settle compares the next attempt",
        OWNER,
        "was_attempt=s.job.attempt,",
        "was_attempt=s.job.attempt + (s.job.attempt > 1),",
        contract("attempt"),
    ),
    Mutant(
        "a retry leaves no entry",
        OWNER,
        "            entries.append((position(job.key, s.due_ms), job.key))\n",
        "            pass\n",
        contract("entry"),
    ),
    Mutant(
        "a retry counts as the same attempt",
        OWNER,
        "attempt=s.job.attempt + 1 if again else s.job.attempt",
        "attempt=s.job.attempt",
        contract("retry or attempt"),
    ),
    Mutant(
        "a settle leaves the mark",
        OWNER,
        "            marks.append((s.shard, job.key))\n",
        "            pass\n",
        contract("mark"),
    ),
    Mutant(
        "a node that lost a shard marks jobs there",
        OWNER,
        "for shard, key in marked if shard in mine)",
        "for shard, key in marked)",
        contract("mark"),
    ),
    # The store above it
    Mutant(
        "an insert whose answer was lost is sent again under new keys",
        STORE,
        "                return await self._door.write(lambda tx: anybody.insert(tx, chunks, now_ms))\n",
        "                again = {s: [NewRow(os.urandom(1).join((r.key[:8], r.key[9:])), r.spec, "
        "r.created_ms) for r in some]"
        " for s, some in chunks.items()}\n"
        "                return await self._door.write(lambda tx: anybody.insert(tx, again, now_ms))\n",
        (*NODES, "-k", "answer_is_lost"),
    ),
    Mutant(
        "an insert whose answer was lost is not sent again",
        STORE,
        "if attempt == TRIES or isinstance(error, StoreBusy):",
        "if True:",
        (*NODES, "-k", "answer_is_lost"),
    ),
    Mutant(
        "an insert in doubt whose repetition waits for locks is said to be unwritten",
        STORE,
        "if isinstance(error, StoreBusy) and attempt > 1:",
        "if False:",
        ("tests/unit/test_insert_in_doubt.py",),
    ),
    Mutant(
        "a reschedule into the past stays in the past",
        STORE,
        "due_ms = now_ms if due_ms is None else max(due_ms, now_ms)",
        "due_ms = now_ms if due_ms is None else due_ms",
        contract("into_the_past"),
    ),
    Mutant(
        "a node does not hear of wakes in its own process",
        STORE,
        "        inserted = await self._insert(batch.chunks, now_ms)\n        self._poke(inserted.woken)\n",
        "        inserted = await self._insert(batch.chunks, now_ms)\n",
        (*NODES, "-k", "own_process"),
    ),
)
