"""Two shards as a model.

Job 0 lies in shard 0 and job 1 in shard 1, both due at 1; the lines move from 1 to 2, so that each job is found by a
scan or by a wake. Locks are taken one after another. Time, low, entries and other requests are in line/.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from tests.model.search import Step
from tests.model.shards.scenarios import RULES, ShardsScenario
from tests.model.shards.state import (
    ABSENT,
    DEAD,
    DONE,
    DUE,
    EXCLUSIVE,
    HANDED_OVER,
    LAST_LINE,
    MODES,
    NO_LOCK,
    NOT_HELD,
    PENDING,
    SHARDS,
    SHARE,
    WAITING,
    Memory,
    Shard,
    ShardsNode,
    State,
    Transaction,
    forget,
    free,
    owned,
    with_memory,
    with_node,
    with_shard,
)


class ShardsModel:
    """Invariants: fenced for each shard alone, once, never lost; a deadlock is a way to lose everything."""

    def __init__(self, scenario: ShardsScenario, off: Collection[str] = ()) -> None:
        if unknown := set(off) - set(RULES):
            raise ValueError(f"unknown rules: {', '.join(sorted(unknown))}")
        self.scenario = scenario
        self.on = {rule: rule not in off for rule in RULES}

    def initial(self) -> State:
        s = self.scenario
        owner = ShardsNode(memory=(Memory(1, 1), Memory(1, 1)))
        order = SHARDS if self.on["shards_are_locked_in_order"] else SHARDS[::-1]
        insert = Transaction("insert", order)
        faults = (s.lapse, s.crash, s.doubt)
        return State(
            (Shard(), Shard()),
            (ABSENT, ABSENT),
            frozenset(),
            insert,
            (owner, ShardsNode()),
            None,
            faults,
            False,
            frozenset(),
        )

    def finished(self, state: State) -> bool:
        return state.rows == (DONE, DONE)

    def violation(self, state: State) -> str | None:
        for shard, job in enumerate(state.rows):
            owner = state.shards[shard].owner
            if (
                job != PENDING
                or state.shards[shard].line <= DUE
                or owner == DEAD
                or shard in state.wakes
                or state.orphan
            ):
                continue
            node = state.nodes[owner]
            memory = node.memory[shard]
            knows = memory[:2] == state.shards[shard][1:] and not node.lane and not memory.doubt
            if knows and memory.held == NOT_HELD and not memory.left:
                return f"never lost: the owner of shard {shard} does not know of its job"
        return None

    def steps(self, state: State) -> list[Step]:
        out: list[Step] = []
        if state.insert:
            out.extend(
                self._transact(state, "the insert", state.insert, self._insert, lambda s, t: s._replace(insert=t))
            )
        if state.orphan:
            index, transaction = state.orphan
            ended = state._replace(orphan=None)
            after, violation = self._write(ended, index, transaction)
            out.append(Step(("the server commits", transaction), after, violation))
            out.append(Step(("the server rolls back", transaction), ended))
        for index in (0, 1):
            out.extend(self._node(state, index))
        return out

    def _transact(
        self,
        state: State,
        who: str,
        transaction: Transaction,
        commit: Callable[[State, Transaction], Step],
        keep: Callable[[State, Transaction], State],
    ) -> Iterable[Step]:
        """The next lock, in order, or the commit. What is read is read once all locks are there."""
        if transaction.reads:
            yield commit(state, transaction)
            return
        wanted = [shard for shard in self._locked(transaction) if transaction.locks[shard] < MODES[transaction.kind]]
        shard = wanted[0]
        mode = MODES[transaction.kind]
        if mode == EXCLUSIVE and not self.on["exclusive_from_start"] and transaction.locks[shard] == NO_LOCK:
            mode = SHARE
        if not free(state, shard, mode, transaction):
            return
        locks = (mode, transaction.locks[1]) if shard == 0 else (transaction.locks[0], mode)
        after = transaction._replace(locks=locks)
        if len(wanted) == 1 and mode == MODES[transaction.kind]:
            reads = tuple((state.shards[n], n in state.wakes) for n in transaction.shards)
            after = after._replace(reads=reads, silent=tuple(node.lapsed for node in state.nodes))
        yield Step(
            (who, transaction.kind, "locks shard", shard, ("", "shared", "exclusively")[mode]), keep(state, after)
        )

    def _locked(self, transaction: Transaction) -> tuple[int, ...]:
        return transaction.shards if self.on["every_shard_is_locked"] else transaction.shards[:1]

    def _insert(self, state: State, transaction: Transaction) -> Step:
        """Both rows, and a wake for each shard whose line was seen behind its job."""
        named = [n for n, (shard, _) in zip(transaction.shards, transaction.reads, strict=True) if shard.line > DUE]
        if not self.on["every_shard_is_woken"]:
            named = named[:1]
        after = state._replace(rows=(PENDING, PENDING), wakes=state.wakes.union(named), insert=None)
        return Step(("the insert commits, wakes", named), after)

    def _node(self, state: State, index: int) -> Iterable[Step]:
        node, name = state.nodes[index], f"node {index}"
        yield from self._faults(state, index, name)
        if node.lane:
            yield from self._transact(
                state,
                name,
                node.lane,
                lambda s, t: self._commit(s, index, t),
                lambda s, t: with_node(s, index, s.nodes[index]._replace(lane=t)),
            )
            if node.lane.reads and state.faults[2] and not state.orphan:
                yield self._lose_answer(state, index, node.lane)
        else:
            yield from self._begin(state, index, name)
        yield from self._beside(state, index, name)

    def _faults(self, state: State, index: int, name: str) -> Iterable[Step]:
        node, (lapse, crash, doubt) = state.nodes[index], state.faults
        owns = any(memory.epoch for memory in node.memory)
        if lapse and owns and not node.lapsed:
            after = state._replace(faults=(lapse - 1, crash, doubt), excused=True, handed=frozenset())
            yield Step((name, "LAPSES"), with_node(after, index, node._replace(lapsed=True)), progress=False)
        if node.lapsed and not node.lane:
            memory = tuple(forget(m) if m.epoch else m for m in node.memory)
            yield Step((name, "renews, must check"), with_node(state, index, ShardsNode(memory=(memory[0], memory[1]))))
        if crash and owns:
            shards = tuple(s._replace(owner=DEAD) if s.owner == index else s for s in state.shards)
            after = state._replace(
                shards=(shards[0], shards[1]), faults=(lapse, crash - 1, doubt), excused=True, handed=frozenset()
            )
            yield Step((name, "CRASHES and starts again"), with_node(after, index, ShardsNode()), progress=False)

    def _beside(self, state: State, index: int, name: str) -> Iterable[Step]:
        """Firing, scanning and loading again, each shard on its own."""
        node = state.nodes[index]
        for n, memory in enumerate(node.memory):
            if not memory.epoch:
                continue
            if memory.held == WAITING and not node.lapsed:
                yield self._fire(state, index, n)
            if node.lane:
                continue
            if memory.doubt:
                if free(state, n, EXCLUSIVE):
                    mine = owned(state, index, n, memory.epoch)
                    loaded = memory._replace(line=state.shards[n].line, left=True, doubt=False) if mine else Memory()
                    yield Step(
                        (name, "loads shard", n, "again" if mine else "and finds it lost"),
                        with_memory(state, index, n, loaded),
                    )
            elif memory.left:
                found = state.rows[n] == PENDING and memory.line > DUE and memory.held == NOT_HELD
                scanned = memory._replace(left=False, held=WAITING if found else memory.held)
                yield Step((name, "scans shard", n), with_memory(state, index, n, scanned))

    def _fire(self, state: State, index: int, n: int) -> Step:
        violation = None
        if state.rows[n] != PENDING:
            violation = f"once: fires job {n}, which is settled"
        elif n in state.handed:
            violation = f"once: hands job {n} over twice without a crash or a lapse"
        memory = state.nodes[index].memory[n]._replace(held=HANDED_OVER)
        handed = state.handed if state.excused else state.handed | {n}
        after = with_memory(state, index, n, memory)._replace(handed=handed)
        return Step((f"node {index}", "HANDS OVER job", n), after, violation)

    def _begin(self, state: State, index: int, name: str) -> Iterable[Step]:
        """One transaction for all shards that have something to do."""
        node, other = state.nodes[index], 1 - index
        sound = [n for n in SHARDS if node.memory[n].epoch and not node.memory[n].doubt]
        work = {
            "consume": [n for n in sound if n in state.wakes],
            "advance": [n for n in sound if node.memory[n].line < LAST_LINE],
            "settle": [n for n in sound if node.memory[n].held == HANDED_OVER],
        }
        for kind, shards in work.items():
            if shards:
                yield self._start(state, index, kind, shards)
        gone = (DEAD, index, other) if state.nodes[other].lapsed else (DEAD, index)
        free_to_take = [n for n in SHARDS if not node.memory[n].epoch and state.shards[n].owner in gone]
        for shards in [free_to_take, *([n] for n in free_to_take if len(free_to_take) > 1)]:
            if shards:
                yield self._start(state, index, "takeover", shards)

    def _start(self, state: State, index: int, kind: str, shards: list[int]) -> Step:
        node = state.nodes[index]
        believed = state.shards if kind == "takeover" else node.memory
        transaction = Transaction(kind, tuple(shards), tuple(believed[n].epoch for n in shards))
        return Step(
            (f"node {index}", "begins to", kind, shards), with_node(state, index, node._replace(lane=transaction))
        )

    def _recorded(self, state: State, index: int, transaction: Transaction) -> list[int]:
        """The shards for which the transaction records anything: those that its node owns, each for itself."""
        pairs = list(
            zip(transaction.shards, transaction.epochs, [shard for shard, _ in transaction.reads], strict=True)
        )
        if transaction.kind == "takeover":
            gone = (
                (DEAD, index)
                if not transaction.silent[1 - index] and self.on["heartbeat_is_read_under_locks"]
                else (0, 1, DEAD)
            )
            return [n for n, epoch, shard in pairs if state.shards[n].epoch == epoch and shard.owner in gone]
        mine = [shard.epoch == epoch and shard.owner in (index, DEAD) for _, epoch, shard in pairs]
        if not self.on["every_shard_is_fenced"]:
            mine = mine[:1] * len(mine)
        if not self.on["lost_shard_costs_no_other"] and not all(mine):
            mine = [False] * len(mine)
        return [n for (n, _, _), owns in zip(pairs, mine, strict=True) if owns]

    def _write(self, state: State, index: int, transaction: Transaction) -> tuple[State, str | None]:
        violation = None
        for n in self._recorded(state, index, transaction):
            shard, woken = state.shards[n], transaction.reads[transaction.shards.index(n)][1]
            epoch = transaction.epochs[transaction.shards.index(n)]
            if transaction.kind == "takeover":
                state = with_shard(state, n, shard._replace(owner=index, epoch=shard.epoch + 1))
            elif transaction.kind == "advance":
                state = with_shard(state, n, shard._replace(line=LAST_LINE))
            elif transaction.kind == "consume" and woken:
                state = state._replace(wakes=state.wakes - {n})
            elif transaction.kind == "settle":
                if state.rows[n] == PENDING and not owned(state, index, n, epoch):
                    violation = f"fenced: a node that lost shard {n} settles there"
                state = state._replace(rows=(DONE, state.rows[1]) if n == 0 else (state.rows[0], DONE))
        return state, violation

    def _commit(self, state: State, index: int, transaction: Transaction) -> Step:
        recorded = self._recorded(state, index, transaction)
        after, violation = self._write(state, index, transaction)
        node = state.nodes[index]
        memory = [
            self._remember(state, after, n, transaction, n in recorded, node.memory[n])
            if n in transaction.shards
            else node.memory[n]
            for n in SHARDS
        ]
        label = (f"node {index}", "commits", transaction.kind, transaction.shards, "recorded for", recorded)
        return Step(label, with_node(after, index, node._replace(lane=None, memory=(memory[0], memory[1]))), violation)

    def _remember(
        self, before: State, after: State, n: int, transaction: Transaction, recorded: bool, memory: Memory
    ) -> Memory:
        if not recorded:
            lost_both = not self.on["lost_shard_costs_no_other"]
            return memory._replace(held=NOT_HELD) if lost_both and transaction.kind == "settle" else Memory()
        match transaction.kind:
            case "takeover":
                return Memory(after.shards[n].epoch, after.shards[n].line, left=True)
            case "advance":
                return memory._replace(line=LAST_LINE, left=True)
            case "consume":
                found = before.rows[n] == PENDING and memory.held == NOT_HELD
                return memory._replace(held=WAITING if found else memory.held)
            case _:
                settled = memory._replace(held=NOT_HELD)
                return settled if before.rows[n] == PENDING else forget(settled)

    def _lose_answer(self, state: State, index: int, transaction: Transaction) -> Step:
        """Every shard of the transaction is in doubt."""
        node, (lapse, crash, doubt) = state.nodes[index], state.faults
        doubted = transaction.shards if self.on["every_shard_is_in_doubt"] else transaction.shards[:1]
        memory = [forget(m) if n in doubted and m.epoch else m for n, m in enumerate(node.memory)]
        after = state._replace(orphan=(index, transaction), faults=(lapse, crash, doubt - 1))
        label = (f"node {index}", "hears NO ANSWER to", transaction.kind, transaction.shards)
        return Step(
            label, with_node(after, index, node._replace(lane=None, memory=(memory[0], memory[1]))), progress=False
        )
