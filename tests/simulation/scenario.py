"""A seeded scenario: nodes, clients, and everything that may go wrong between them; then peace, and a judgement.

`python -m tests.simulation.scenario SEED` prints the history of one; with `0:500` it prints what is broken in many.
Set PYTHONHASHSEED=0: the order of sets is part of what a seed decides.
"""

import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from infinite_scheduler.errors import InvalidRequest, StoreUnavailable, Unavailable
from infinite_scheduler.model import Accepted, Change, JobId, JobSpec, Priority, Shard
from infinite_scheduler.store.sql.protocol import anybody
from infinite_scheduler.store.sql.statements import NewRow, Statements
from infinite_scheduler.store.sql.store import SqlStore
from tests.simulation.checker import Violation, judge
from tests.simulation.database import SimDatabase
from tests.simulation.history import Event, History, tables
from tests.simulation.node import LEASE_MS, Plan, SimNode
from tests.simulation.server import Server, Weather
from tests.simulation.statements import SimStatements
from tests.simulation.world import Process, World

PLENTY = 64 << 20

PEACE = 120.0
"""After so many seconds without any disturbance everything must be settled, suspects that are fired alone included."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What kind of trouble a scenario is made of; how much of it the seed decides, up to these numbers."""

    name: str
    weather: Weather = Weather()
    active: float = 9.0  # seconds during which clients are busy
    jobs: tuple[int, int] = (20, 45)
    changes: int = 25
    kills: int = 0
    poison: int = 0
    pauses: int = 0
    aways: int = 0
    moves: int = 0  # nodes that leave or join by plan
    clock_steps: int = 0
    longest_ms: int = 1500  # what a handler takes
    skew_ms: int = 100
    stall: float = 0.002
    budget: tuple[int, ...] = (PLENTY,)
    latest_ms: float | None = None


ROUGH = Weather(slow=0.01, slow_for=(0.02, 1.2), unfair=0.3, knows_dead=0.3, heavy=0.1)
DOUBTFUL = msgspec.structs.replace(ROUGH, slow_for=(0.02, 1.0), lost=0.03, lost_budget=6, error=0.004, error_budget=6)
TIGHT = (2500, 5000, 9000)

PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(name="calm", latest_ms=900, stall=0.0, skew_ms=0),
        Profile(name="tight", weather=ROUGH, budget=TIGHT, jobs=(30, 60)),
        Profile(name="slow", weather=msgspec.structs.replace(ROUGH, slow=0.04), clock_steps=2, stall=0.03),
        Profile(name="moves", weather=ROUGH, moves=4, budget=(PLENTY, 5000)),
        Profile(
            name="restless",
            weather=msgspec.structs.replace(ROUGH, slow=0.05, slow_for=(0.02, 0.4)),
            moves=8,
            changes=70,
            clock_steps=4,
        ),
        Profile(name="crashes", weather=ROUGH, kills=3, poison=1, budget=(PLENTY, 5000)),
        Profile(name="pauses", weather=ROUGH, pauses=4),
        Profile(name="doubt", weather=DOUBTFUL, budget=(PLENTY, 5000)),
        Profile(name="away", weather=ROUGH, aways=4),
        Profile(name="lapses", weather=ROUGH, jobs=(30, 60), pauses=6, aways=6, longest_ms=4000),
        Profile(
            name="storm",
            weather=msgspec.structs.replace(DOUBTFUL, waits_for_inserts=True),
            kills=2,
            pauses=2,
            aways=2,
            moves=2,
            clock_steps=1,
            budget=(PLENTY, *TIGHT),
        ),
    )
}


class Outcome(msgspec.Struct, frozen=True):
    """What a run left behind."""

    seed: int
    profile: str
    events: Sequence[Event]
    tables: Mapping[str, Mapping[Any, Any]]
    violations: Sequence[Violation]
    seconds: float  # of virtual time


Mutant = Callable[[], AbstractContextManager[Any]]
"""Takes one rule out of the code while it is entered."""


def run(seed: int, profile: Profile | None = None, mutant: Mutant = contextlib.nullcontext) -> Outcome:
    """Play one scenario to its end and judge it."""
    profile = profile or list(PROFILES.values())[seed % len(PROFILES)]
    with deterministic(seed), mutant():
        return Scenario(seed, profile, strict=mutant is contextlib.nullcontext).play()


def first_violation(seeds: Sequence[int], mutant: Mutant, profile: Profile | None = None) -> Outcome | None:
    """The first run among these seeds in which a promise is broken."""
    for seed in seeds:
        outcome = run(seed, profile, mutant)
        if outcome.violations:
            return outcome
    return None


@contextlib.contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """Whatever draws lots draws them from the seed."""
    lots, urandom, state = random.Random(~seed), os.urandom, random.getstate()
    os.urandom = lots.randbytes
    random.seed(seed)
    try:
        yield
    finally:
        os.urandom = urandom
        random.setstate(state)


class Scenario:
    """One world from its beginning to its judgement."""

    def __init__(self, seed: int, profile: Profile, *, strict: bool) -> None:
        self.world = World(seed, stall=profile.stall)
        self.rng = self.world.rng
        self.profile = profile
        self.server = Server(self.world, profile.weather)
        self.server.strict = strict
        self.history = History(self.world)
        self.server.listeners.append(self.history.committed)
        self.apps = {f"app{i}": self.rng.choice((1, 2, 4)) for i in range(self.rng.choice((1, 1, 2)))}
        self.lanes = self.rng.choice((1, 2, 2))
        self.nodes: list[SimNode] = []
        self.clients: list[tuple[Process, SqlStore]] = []
        self.jobs: dict[str, list[tuple[bytes, int]]] = {app: [] for app in self.apps}
        self.open_calls = 0
        self.calls = 0
        self.names = 0

    def play(self) -> Outcome:
        try:
            self._prepare()
            self._plan()
            self.world.run(self.profile.active)
            self._make_peace()
            found = tables(self.server.dump())
        finally:
            self.world.close()
        violations = judge(self.history.events, found, lease_ms=LEASE_MS, latest_ms=self.profile.latest_ms)
        now = self.world.now_ms()
        violations += [Violation("nodes work as they should", now, "", error) for error in self.world.errors]
        return Outcome(self.world.seed, self.profile.name, self.history.events, found, violations, self.world.now)

    # The beginning

    def _prepare(self) -> None:
        """Clients and nodes, and time for the nodes to share the shards."""
        weather, self.server.weather = self.server.weather, Weather()
        self.user = self._process("u")
        for number in range(2):
            process = self._process(f"c{number}")
            store = SqlStore(SimDatabase(self.server, process), process.clock)
            self.clients.append((process, store))
            self.world.complete(process, self._register(store))
        everything = sorted(self.apps)
        for number in range(self.rng.choice((2, 2, 3))):
            self._start_node(everything if number == 0 or self.rng.random() < 0.8 else everything[:1])
        self.world.run(2.5)
        self.server.weather = weather

    async def _register(self, store: SqlStore) -> None:
        await store.open()
        for app, shards in self.apps.items():
            await store.register(app, shards)

    def _process(self, name: str) -> Process:
        self.names += 1
        skew_ms = self.rng.randint(-self.profile.skew_ms, self.profile.skew_ms)
        return self.world.process(f"{name}.{self.names}", skew_ms=skew_ms)

    def _start_node(self, apps: Sequence[str]) -> None:
        budget = self.rng.choice(self.profile.budget)
        node = SimNode(self.server, self._process("n"), self.history, apps, lanes=self.lanes, budget=budget)
        self.nodes.append(node)
        node.start()

    # What happens

    def _plan(self) -> None:
        """Draw all that will happen, and when."""
        profile, rng = self.profile, self.rng
        plans: list[tuple[int, Callable[[], None]]] = [
            (rng.randint(*profile.jobs), self._schedule),
            (rng.randint(0, 3), self._enqueue),
            (rng.randint(profile.changes // 3, profile.changes), self._change),
            (rng.randint(0, profile.kills), self._kill),
            (rng.randint(0, profile.pauses), self._pause),
            (rng.randint(0, profile.aways), self._go_away),
            (rng.randint(0, profile.moves), self._move),
            (rng.randint(0, profile.clock_steps), self._step_clock),
        ]
        for count, happens in plans:
            for _ in range(count):
                self.world.after(rng.random() * profile.active, happens)
        if profile.poison and rng.random() < 0.4:
            self.world.after(rng.random() * profile.active, self._poison)

    def _living(self) -> list[SimNode]:
        return [node for node in self.nodes if node.process.alive]

    def _door(self) -> tuple[Process, SqlStore]:
        """A client's store, or that of a node."""
        nodes = [node for node in self._living() if node.engine is not None and node.process.runs]
        if nodes and self.rng.random() < 0.5:
            node = self.rng.choice(nodes)
            return node.process, node.store
        return self.rng.choice(self.clients)

    def _due_ms(self, process: Process) -> int:
        """Some moment around the line: past, soon, near the look-ahead, or after it."""
        rng = self.rng
        ahead = rng.choice(
            (
                rng.uniform(-2000, 0),
                rng.uniform(0, 300),
                rng.uniform(0, 3000),
                rng.uniform(2500, 3500),
                rng.uniform(0, 7000),
            )
        )
        return process.wall_ms() + int(ahead)

    def _job_plan(self) -> Plan:
        rng = self.rng
        ends: list[str] = []
        while rng.random() < 0.25 and len(ends) < 3:
            ends.append(rng.choice(("retry", "error", "past", "past")))
        ends.append("fail" if rng.random() < 0.1 else "done")
        takes_ms = rng.choice((0, 0, 0, rng.randint(1, 50), rng.randint(50, self.profile.longest_ms)))
        return Plan(ends=tuple(ends), takes_ms=takes_ms)

    def _spec(self, process: Process, plan: Plan) -> JobSpec:
        self.names += 1
        return JobSpec(
            app=self.rng.choice(sorted(self.apps)),
            scheduled_ms=self._due_ms(process),
            payload=plan.payload(),
            priority=self.rng.choice(tuple(Priority)),
            idempotency_key=f"key {self.names}" if self.rng.random() < 0.7 else None,
        )

    def _schedule(self) -> None:
        process, store = self._door()
        count = self.rng.choice((1, 1, 1, 2, 4))
        specs = [self._spec(process, self._job_plan()) for _ in range(count)]
        process.spawn(self._add(process, store, specs))

    def _poison(self) -> None:
        process, store = self.rng.choice(self.clients)
        ends = ("die",) if self.rng.random() < 0.5 else ("die", "done")
        process.spawn(self._add(process, store, [self._spec(process, Plan(ends=ends))]))

    async def _add(self, process: Process, store: SqlStore, specs: Sequence[JobSpec]) -> None:
        again = all(spec.idempotency_key is not None for spec in specs)
        accepted: Sequence[Accepted] = ()
        for _ in range(3):
            with contextlib.suppress(StoreUnavailable):
                accepted = await store.add(specs)
            if accepted or not again:
                break
        for spec, answer in zip(specs, accepted, strict=False):
            self.history.add("accepted", process.name, answer.key.hex(), due=answer.due_ms, asked=spec.scheduled_ms)
            self.jobs[spec.app].append((answer.key, answer.due_ms))

    def _enqueue(self) -> None:
        """A transaction of a user's own: it takes no lock on the shard, and commits late."""
        process = self.user
        spec = self._spec(process, self._job_plan())
        shard = Shard(spec.app, self.rng.randrange(self.apps[spec.app]))
        key = bytes(JobId.make(max(spec.scheduled_ms, process.wall_ms()), shard.number, spec.priority))
        hold = self.rng.choice((0.0, self.rng.random(), self.rng.uniform(0, 4)))

        def body(tx: Statements) -> None:
            assert isinstance(tx, SimStatements)
            anybody.enqueue(tx, {shard: [NewRow(key, spec, process.wall_ms())]}, process.wall_ms())
            tx.hold(hold)

        async def commit() -> None:
            with contextlib.suppress(StoreUnavailable):
                await SimDatabase(self.server, process).session("user").write(body)
                self.history.add("accepted", process.name, key.hex(), due=spec.scheduled_ms)
                self.jobs[spec.app].append((key, spec.scheduled_ms))

        process.spawn(commit())

    def _change(self) -> None:
        """Ask for a change of some job, most likely one that is still to come; sometimes twice at once."""
        app = self.rng.choice(sorted(self.apps))
        if not self.jobs[app]:
            return
        soon = [key for key, due_ms in self.jobs[app] if due_ms > self.world.now_ms() - 300]
        key = self.rng.choice(soon if soon and self.rng.random() < 0.8 else [key for key, _ in self.jobs[app]])
        for _ in range(self.rng.choice((1, 1, 2))):
            change = self.rng.choice(
                (Change.CANCEL, Change.RESCHEDULE, Change.RESCHEDULE, Change.RUN_NOW, Change.RETRY)
            )
            process, store = self._door()
            process.spawn(self._ask(process, store, app, key, change))

    async def _ask(self, process: Process, store: SqlStore, app: str, key: bytes, change: Change) -> None:
        self.calls += 1
        call, due_ms = self.calls, self._due_ms(process) if change is Change.RESCHEDULE else None
        seen_ms = None if change is Change.CANCEL else max(due_ms or 0, process.wall_ms())
        timeout_ms = self.rng.choice((300, 2000, 8000))
        self.history.add("asked", process.name, key.hex(), call=call, change=str(change), due=seen_ms)
        try:
            decision = await store.change(change, key, due_ms=due_ms, app=app, timeout_ms=timeout_ms)
            answer = "granted" if decision.granted else "too late"
        except StoreUnavailable:
            answer = "unknown"
        except Unavailable:
            answer = "unavailable"
        except InvalidRequest:
            answer = "refused"
        self.history.add("answered", process.name, key.hex(), call=call, decision=answer)
        if answer == "granted" and seen_ms is not None:
            self.jobs[app].append((key, seen_ms))

    # What goes wrong

    def _some_node(self) -> SimNode | None:
        nodes = [node for node in self._living() if node.process.runs]
        return self.rng.choice(nodes) if nodes else None

    def _kill(self) -> None:
        node = self._some_node()
        if node is not None:
            self.history.add("killed", node.process.name)
            node.process.kill()
            if self.rng.random() < 0.7:
                self.world.after(self.rng.random() * 2, lambda: self._start_node(list(node.apps)))

    def _pause(self) -> None:
        node = self._some_node()
        if node is not None:
            seconds = self._about_a_lease()
            self.history.add("paused", node.process.name, until=self.world.now_ms() + seconds * 1000)
            node.process.pause(seconds)

    def _about_a_lease(self) -> float:
        """Seconds: shorter than the lease, just about as long, or longer."""
        rng, lease = self.rng, LEASE_MS / 1000
        return rng.choice((rng.uniform(0.1, lease), rng.uniform(0.9, 1.5) * lease, rng.uniform(1, 3) * lease))

    def _go_away(self) -> None:
        node = self._some_node()
        everybody = self.rng.random() < 0.3
        seconds = self._about_a_lease()
        self.server.go_away(seconds, None if everybody or node is None else node.process)
        who = "" if everybody or node is None else node.process.name
        self.history.add("away", who, until=self.world.now_ms() + seconds * 1000)

    def _move(self) -> None:
        """A planned join or leave."""
        node = self._some_node()
        if node is not None and len(self._living()) > 1 and self.rng.random() < 0.6:
            node.leave()
        elif len(self._living()) < 4:
            self._start_node(sorted(self.apps))

    def _step_clock(self) -> None:
        node = self._some_node()
        if node is not None:
            by_ms = self.rng.randint(-1500, 1500)
            node.process.skew_ms += by_ms
            self.history.add("stepped", node.process.name, by=by_ms)

    # The end

    def _make_peace(self) -> None:
        """No more trouble: every app has a node, and everything has time to come to rest."""
        self.server.calm()
        self.world.stall = 0.0
        for _ in range(int(PEACE)):
            if not self._served():
                self._start_node(sorted(self.apps))
            self.world.run(1.0)
            if self._at_rest():
                self.world.run(1.0)  # a client whose answer was lost may ask again
                if self._at_rest():
                    break

    def _at_rest(self) -> bool:
        pending = any(record.status == "pending" for record in self.server.tables["jobs"].values())
        return not pending and not self.server.open

    def _served(self) -> bool:
        """Does each app have a node that stays?"""
        staying = [n for n in self._living() if n.engine is None or not n.engine.membership.leaving]
        return {app for node in staying for app in node.apps} == self.apps.keys()


def main() -> None:
    """Print the histories of the seeds that are named; of a range (`0:500`) only what is broken."""
    broken = 0
    for argument in sys.argv[1:]:
        first, _, last = argument.partition(":")
        for seed in range(int(first), int(last or int(first) + 1)):
            outcome = run(seed)
            broken += bool(outcome.violations)
            if not last:
                print(*(event for event in outcome.events if not is_heartbeat(event)), sep="\n")
            if outcome.violations or not last:
                print(f"seed {seed}, {outcome.profile}, {outcome.seconds:.0f} s", *outcome.violations, sep="\n  ")
    sys.exit(broken > 0)


def is_heartbeat(event: Event) -> bool:
    return event.what == "committed" and all(change[0] == "nodes" for change in event.facts["changes"])


if __name__ == "__main__":
    main()
