"""What one node keeps in memory: lane, wheel, window, lease, quarantine."""

from tests.mutants.mutant import Mutant

ANSWERER = "engine/answerer.py"
CLOCK = "engine/agreed_clock.py"
DISPATCHER = "engine/dispatcher.py"
JUDGE = "engine/judge.py"
LANE = "engine/lane.py"
LEASE = "engine/lease.py"
OUTAGE = "engine/destination_outage.py"
OWNED = "engine/owned_shard.py"
PIPELINE = "engine/pipeline.py"
QUARANTINE = "engine/quarantine.py"
SETTLER = "engine/settler.py"
SHARDS = "engine/owned_shards.py"
SWEEP = "engine/sweep.py"
WHEEL = "engine/wheel.py"
WINDOW = "engine/window.py"

RULES = ("tests/unit/test_engine_rules.py",)
ORDERS = ("tests/unit/test_engine_interleavings.py",)
CLUSTER = ("tests/unit/test_engine_cluster.py",)
MEMORY = ("tests/unit/test_engine_memory.py",)
POISON = ("tests/unit/test_engine_poison.py",)
MANY_APPS = ("tests/unit/test_engine_many_apps.py", "-k", "many_apps")
SAFETY = ("tests/unit/test_engine_safety.py",)
STOP = ("tests/unit/test_engine_stop.py",)
OUTCOMES = ("tests/unit/test_engine_outcomes.py",)
TIMES = ("tests/unit/test_engine_clock.py",)
AGREED = ("tests/unit/test_agreed_clock.py",)
DESTINATION = ("tests/unit/test_engine_destination.py",)
CANCELLED = ("tests/unit/test_engine_cancelled.py", "tests/unit/test_broken_handlers.py")
BAD = ("tests/unit/test_engine_bad_outcomes.py",)
VERDICTS = ("tests/unit/test_judge.py",)

SIMULATION = tuple(f"tests/simulation/test_simulation.py::test_no_promise_is_broken[{chunk}]" for chunk in range(4))
"""A fifth of the seeds: enough for a missing rule of memory to show, in half a minute."""

MUTANTS = (
    # Lane
    Mutant(
        "a bug in a step leaves memory as it is",
        LANE,
        '                self.owned_shards.doubt(list(self.owned_shards.by_shard), "a step of the lane failed")\n',
        "",
        SAFETY,
    ),
    Mutant(
        "what a page was to bring is forgotten when reading it fails",
        LANE,
        "            except BaseException:\n                window.unread(scan, scan.start)\n",
        "            except BaseException:\n                pass\n",
        SAFETY,
    ),
    Mutant(
        "what many apps were to bring is forgotten when asking for it fails",
        LANE,
        "                    window.unread(scan, scan.start)\n                    window.may_be_empty = empty is None",
        "                    window.may_be_empty = empty is None",
        MANY_APPS,
    ),
    Mutant(
        "apps whose last range had jobs are asked whether they have any",
        "engine/window.py",
        "        self.may_be_empty = not self._had_jobs\n",
        "        self.may_be_empty = True\n",
        ("tests/unit/test_engine_many_apps.py", "-k", "last_range"),
    ),
    Mutant(
        "an app that once had jobs is never asked for together with others",
        "engine/window.py",
        "        self._found = 0\n        self._had_jobs = False\n\n",
        "        self._found = 0\n\n",
        ("tests/unit/test_engine_many_apps.py", "-k", "last_range"),
    ),
    Mutant(
        "of many apps, one that has jobs counts as empty",
        LANE,
        "                if app in (empty or ()):\n",
        "                if True:\n",
        MANY_APPS,
    ),
    Mutant(
        "a page counts as read before it is",
        LANE,
        "            window.begin(scan)\n            try:\n                page = await self._ownership.scan(scan)",
        "            try:\n                page = await self._ownership.scan(scan)",
        ("tests/unit/test_engine_rules.py", "-k", "test_a_command_begins_only_after_the_effect_of_the_step_under_way"),
    ),
    Mutant(
        "a shard is released while handlers work on its jobs",
        LANE,
        "empty = [owned for owned in draining if not owned.handed_over and not owned.came_back][:SHARDS_AT_ONCE]",
        "empty = draining[:SHARDS_AT_ONCE]",
        CLUSTER,
    ),
    Mutant(
        "a shard in doubt is released",
        LANE,
        "draining = [owned for owned in self.owned_shards.draining.values() if owned.doubt is None]",
        "draining = list(self.owned_shards.draining.values())",
        SIMULATION,
        survives="the first step of a turn reloads what is in doubt, or raises and ends the turn: none gets that far",
    ),
    Mutant(
        "a drain is never called off",
        LANE,
        "            and owned.drain_until_ms is not None\n"
        "            and owned.drain_until_ms <= self._clock.steady_ms()\n",
        "            and False\n",
        (*CLUSTER, "-k", "drain"),
    ),
    Mutant(
        "a reload forgets which jobs fly",
        LANE,
        "handed_over = {key for owned in doubted.values() for key in owned.handed_over}",
        "handed_over: set[bytes] = set()",
        (*POISON, "-k", "flies_alone"),
    ),
    Mutant(
        "shards that a reload did not find are kept",
        LANE,
        "        self.owned_shards.lose(doubted.keys() - grants.keys())\n",
        "",
        ("tests/unit/test_engine_cluster.py", "-k", "test_a_node_that_was_cut_off_fires_nothing_of_what_others_took"),
    ),
    Mutant(
        "shards that an advance has lost are kept",
        LANE,
        "            self._windows[app].stepped(step for step in some if step.shard not in lost)\n"
        "        self.owned_shards.lose(lost)\n",
        "            self._windows[app].stepped(step for step in some if step.shard not in lost)\n",
        (*CLUSTER, "-k", "finds_lost"),
    ),
    Mutant(
        "a lost shard's line moves in memory",
        LANE,
        "self._windows[app].stepped(step for step in some if step.shard not in lost)",
        "self._windows[app].stepped(some)",
        (*CLUSTER, *RULES),
        survives="what is lost leaves memory in the same step, before anything else looks at it",
    ),
    Mutant(
        "a job that left the node is marked",
        LANE,
        "            and (owned.held.get(job.key) or owned.handed_over.get(job.key)) is job\n",
        "",
        POISON,
        survives="such a mark is deleted with the settle or the cancel that took the job away, or charges no job that "
        "still runs; the check saves the write",
    ),
    # Owned shards
    Mutant(
        "a write without an answer leaves its shards without doubt",
        SHARDS,
        '            self.doubt(owners, "a write to the store was not answered")\n',
        "",
        SIMULATION,
    ),
    Mutant(
        "a job from behind the line goes onto the wheel",
        SHARDS,
        "if owned is not None and job.due_ms < owned.line_ms:",
        "if owned is not None:",
        (*ORDERS, "-k", "behind_the_line_can"),
    ),
    Mutant(
        "a takeover without a release makes no suspects",
        SHARDS,
        "suspect_until_ms=self._clock.wall_ms() if grant.unclean and self._marks else -1)",
        "suspect_until_ms=-1)",
        POISON,
    ),
    Mutant(
        "memory keeps a low that the store has lowered",
        SHARDS,
        "            self.by_shard[shard].low_ms = its_ms\n",
        "            pass\n",
        (*RULES, *ORDERS, "tests/unit/test_engine_safety.py"),
        survives="low in memory is for the sweep only, whose net then begins later; the next advance computes low anew",
    ),
    Mutant(
        "shards in doubt are written to",
        SHARDS,
        "if (owned := owned_shards.get(shard)) is not None and owned.doubt is None",
        "if (owned := owned_shards.get(shard)) is not None",
        (*RULES, *ORDERS),
        survives="the first step of a turn reloads what is in doubt; the settler and the answerer leave it out as well",
    ),
    # Owned shard
    Mutant(
        "a takeover scans from the line",
        OWNED,
        "self.cursors = [start_of(min(grant.low_ms, grant.line_ms))]",
        "self.cursors = [start_of(grant.line_ms)]",
        ORDERS,
    ),
    Mutant(
        "a shard in doubt hands over",
        OWNED,
        "return not self.draining and self.doubt is None",
        "return not self.draining",
        (*RULES, *ORDERS),
        survives="doubt forgets everything that is held, so there is nothing to hand over until it is loaded again",
    ),
    Mutant(
        "a shard that is drained hands over",
        OWNED,
        "return not self.draining and self.doubt is None",
        "return self.doubt is None",
        SIMULATION,
    ),
    Mutant(
        "the larger of two cursors wins",
        OWNED,
        "self.cursors[priority] = min(self.cursors[priority], position)",
        "self.cursors[priority] = position",
        (*MEMORY, *RULES),
    ),
    Mutant(
        "low passes what is not read yet",
        OWNED,
        "bounds = [now_ms, self.line_ms, self.unread_ms]",
        "bounds = [now_ms, self.line_ms]",
        SIMULATION,
    ),
    Mutant(
        "low passes now",
        OWNED,
        "bounds = [now_ms, self.line_ms, self.unread_ms]",
        "bounds = [self.line_ms, self.unread_ms]",
        (*RULES, *ORDERS),
        survives="an insert before the line leaves a wake that lowers low, so this only saves work: "
        "`low_stays_before_now` in docs/concepts/line-protocol.md",
    ),
    Mutant(
        "low passes jobs that are ready",
        OWNED,
        "            bounds.append(oldest_ready_ms)\n",
        "            pass\n",
        (
            "tests/unit/test_engine_memory.py",
            "-k",
            "test_a_paused_app_that_is_loaded_again_and_again_keeps_each_job_once",
        ),
    ),
    Mutant(
        "low passes jobs that are handed over",
        OWNED,
        "        bounds.extend(job.due_ms for job in self.handed_over.values())\n",
        "",
        SIMULATION,
    ),
    Mutant(
        "low passes jobs that are parked",
        OWNED,
        "        bounds.extend(job.due_ms for job in self.parked)\n",
        "",
        (*RULES, *CLUSTER),
    ),
    Mutant(
        "low passes jobs in quarantine",
        OWNED,
        "        bounds.extend(job.due_ms for job in self.quarantined.values())\n",
        "",
        ("tests/unit/test_engine_poison.py", "-k", "test_suspects_are_fired_alone_when_the_others_have_ended"),
    ),
    # Window
    Mutant(
        "a job that is handed over is taken again",
        WINDOW,
        "if owned is None or job.key in owned.held or job.key in owned.handed_over:",
        "if owned is None or job.key in owned.held:",
        (*RULES, *ORDERS),
    ),
    Mutant(
        "a job that is held is taken again",
        WINDOW,
        "if owned is None or job.key in owned.held or job.key in owned.handed_over:",
        "if owned is None or job.key in owned.handed_over:",
        (*RULES, *ORDERS),
    ),
    Mutant(
        "a job without room is forgotten",
        WINDOW,
        "            self.leave_to_scan(owned, job.position)\n            return False\n",
        "            return False\n",
        MEMORY,
    ),
    Mutant(
        "a displaced job is forgotten",
        WINDOW,
        "            self.leave_to_scan(owned, victim.position)\n",
        "            pass\n",
        MEMORY,
    ),
    Mutant(
        "a displaced job is looked for at its first moment",
        WINDOW,
        "            self.leave_to_scan(owned, victim.position)\n",
        "            self.leave_to_scan(owned, victim.key)\n",
        SIMULATION,
    ),
    Mutant(
        "jobs behind the one without room are forgotten",
        WINDOW,
        "                    self._leave_unread(page.jobs[i + 1 :])\n",
        "",
        SIMULATION,
    ),
    Mutant(
        "the rest of a cut page is forgotten",
        WINDOW,
        "        if page.next is not None:\n            self.unread(scan, page.next)\n",
        "",
        MEMORY,
    ),
    Mutant(
        "a job stays on the wheel while its change is decided",
        WINDOW,
        "        job = owned.held.pop(key, None)\n        owned.quarantined.pop(key, None)\n",
        "        job = owned.held.get(key)\n"
        "        return copy(job) if job else None\n"
        "        owned.quarantined.pop(key, None)\n",
        (*RULES, *ORDERS),
    ),
    Mutant(
        "a reload keeps what was held",
        WINDOW,
        "        self._change()\n        self.forget(owned)\n        owned.load(grant)\n",
        "        self._change()\n        owned.load(grant)\n",
        (*RULES, *ORDERS),
        survives="doubt has forgotten it already; this is for what a step in progress has read since, which the lane "
        "does only within one turn",
    ),
    Mutant(
        "doubt keeps what is held",
        WINDOW,
        "        owned.doubt = why\n        self.forget(owned)\n",
        "        owned.doubt = why\n",
        SIMULATION,
        survives="a shard in doubt hands nothing over, and the reload forgets once more what it holds",
    ),
    Mutant(
        "a page is read before the requests of a new shard",
        WINDOW,
        "if owned.doubt is None and owned.requests_read and not owned.scanned",
        "if owned.doubt is None and not owned.scanned",
        RULES,
    ),
    Mutant(
        "a line moves while its shard is drained",
        WINDOW,
        "if owned.doubt is not None or owned.draining or owned.line_ms",
        "if owned.doubt is not None or owned.line_ms",
        (*CLUSTER, *RULES),
        survives="a drained shard whose line moves is scanned by its next owner from low, so this only saves work",
    ),
    Mutant(
        "a line moves back in memory",
        WINDOW,
        "line_ms=max(goal, owned.line_ms)",
        "line_ms=goal",
        (*RULES, *ORDERS),
        survives="the store keeps a line from moving back, and a line in memory that is too early leaves jobs to the "
        "next scan",
    ),
    Mutant(
        "a scan goes on where the store's line is",
        WINDOW,
        "            if owned is not None and owned.owner == step.owner:\n"
        "                owned.line_ms = step.line_ms\n",
        "            if owned is not None and owned.owner == step.owner:\n"
        "                owned.line_ms = step.line_ms\n"
        "                owned.cursors = [owned.end] * 3\n",
        ORDERS,
    ),
    Mutant(
        "the memory of settled jobs is not freed",
        WINDOW,
        "        self._budget.give(self.app, size)\n",
        "        pass\n",
        MEMORY,
    ),
    # Settler
    Mutant(
        "outcomes without an answer are dropped",
        SETTLER,
        "        except SchedulerError:\n            self._outcomes.extendleft(reversed(batch))\n            raise\n",
        "        except SchedulerError:\n            raise\n",
        ORDERS,
    ),
    Mutant(
        "outcomes of shards in doubt are dropped",
        SETTLER,
        "                kept.append((owned, settlement))\n",
        "                dropped += 1\n",
        SIMULATION,
    ),
    Mutant(
        "outcomes of a former time of a shard are recorded",
        SETTLER,
        "            if owned_shards.get(owned.shard) is not owned:\n",
        "            if owned.shard not in owned_shards:\n",
        (*CLUSTER, *RULES, *ORDERS),
        survives="the compare-and-set on attempt and due moment refuses them, and a miss leads to a reload",
    ),
    Mutant(
        "a settle that changed no row leaves memory as it is",
        SETTLER,
        '        self._owned_shards.doubt(recorded.missed, "a job was not as this node remembered it")\n',
        "",
        RULES,
    ),
    Mutant(
        "shards that a settle has lost are kept",
        SETTLER,
        "        self._owned_shards.lose(recorded.lost)\n",
        "",
        (*CLUSTER, "-k", "finds_lost"),
    ),
    Mutant(
        "a job that is to be tried again waits for the sweep",
        SETTLER,
        "            self._owned_shards.put(job)\n        self._owned_shards.lower",
        "            pass\n        self._owned_shards.lower",
        OUTCOMES,
    ),
    Mutant(
        "a settled job stays in flight",
        SETTLER,
        "if owned.handed_over.pop(s.job.key, None) is not None:",
        "if owned.handed_over.get(s.job.key) is not None:",
        (*OUTCOMES, *STOP),
    ),
    Mutant(
        "one outcome that cannot be recorded blocks all others",
        SETTLER,
        "            self._outcomes.extendleft(reversed(self._narrowed(batch, error)))\n",
        "            self._outcomes.extendleft(reversed(batch))\n",
        BAD,
    ),
    # Answerer
    Mutant(
        "a job is handed over while its cancel is decided",
        ANSWERER,
        "            elif (job := owned_shards.windows[request.shard.app].take_off(key, owned)) is not None:\n"
        "                off[key] = job\n",
        "",
        (*RULES, *ORDERS),
    ),
    Mutant(
        "the store is not told which jobs are handed over",
        ANSWERER,
        "self._ownership.answer(owners, requests, handed_over, ROOM)",
        "self._ownership.answer(owners, requests, (), ROOM)",
        ORDERS,
    ),
    Mutant(
        "a job whose request is gone does not return to the wheel",
        ANSWERER,
        "stands: dict[bytes, Job | None] = dict(off)",
        "stands: dict[bytes, Job | None] = {}",
        RULES,
    ),
    Mutant(
        "woken jobs are left to the sweep",
        ANSWERER,
        "            if job.key not in stands:\n                owned_shards.put(job)\n",
        "            pass\n",
        ORDERS,
    ),
    Mutant(
        "woken jobs without room are forgotten",
        ANSWERER,
        "            owned_shards.leave_to_scan(shard, position)\n",
        "            pass\n",
        (*MEMORY, *ORDERS),
    ),
    Mutant(
        "shards that an answer has lost are kept",
        ANSWERER,
        "        owned_shards.lose(answers.lost)",
        "        pass",
        (*CLUSTER, "-k", "finds_lost"),
    ),
    Mutant(
        "a look that failed is not made again",
        ANSWERER,
        "        except BaseException:\n            self._poked = True\n            raise\n",
        "        except BaseException:\n            raise\n",
        (*ORDERS, *RULES, "tests/unit/test_engine_pokes.py"),
        survives="the next poll looks anyway, a few milliseconds later; a reload pokes as well",
    ),
    # Lease and clock
    Mutant(
        "a lease that lapsed is valid again by itself",
        LEASE,
        "            self.lapsed = True\n",
        "            return False\n",
        (*CLUSTER, "-k", "lapse or lease or cut_off"),
    ),
    Mutant(
        "a lease never lapses",
        LEASE,
        "if silent_ms >= self._lease_ms and not self.lapsed:",
        "if False:",
        (*CLUSTER, "-k", "cut_off or lease"),
    ),
    Mutant(
        "a node whose lease had lapsed does not check what it owns",
        LEASE,
        "        return had_lapsed\n",
        "        return False\n",
        (*CLUSTER, *RULES),
    ),
    Mutant(
        "the gate does not ask the lease",
        LEASE,
        "return not self.held_shut and self.lease.valid()",
        "return not self.held_shut",
        RULES,
    ),
    Mutant(
        "the gate cannot be held shut",
        LEASE,
        "return not self.held_shut and self.lease.valid()",
        "return self.lease.valid()",
        POISON,
    ),
    Mutant(
        "the store's clock does not count",
        CLOCK,
        "return min(wall_ms, self._store.earliest_us(self._clock.steady_us()) // 1000)",
        "return wall_ms",
        (*AGREED, *TIMES),
    ),
    Mutant(
        "this machine's clock does not count",
        CLOCK,
        "return min(wall_ms, self._store.earliest_us(self._clock.steady_us()) // 1000)",
        "return self._store.earliest_us(self._clock.steady_us()) // 1000",
        (*AGREED, *TIMES),
    ),
    Mutant(
        "a sample gets no less certain with age",
        CLOCK,
        "return elapsed_us * DRIFT_PPM // 1_000_000 + 1",
        "return 0",
        ("tests/unit/test_agreed_clock.py", "-k", "test_the_stores_clock_is_never_outside_its_bounds"),
    ),
    Mutant(
        "samples that contradict each other are joined",
        CLOCK,
        "            if joint[0] <= joint[1]:\n",
        "            if True:\n",
        ("tests/unit/test_agreed_clock.py", "-k", "test_a_step_of_the_stores_clock_is_followed_by_the_next_sample"),
    ),
    Mutant(
        "a node whose clock is far off goes on",
        CLOCK,
        "            self.off = True\n",
        "            pass\n",
        (*AGREED, *TIMES),
    ),
    # Dispatcher
    Mutant(
        "jobs of a shard that may not fire are handed over",
        DISPATCHER,
        "            elif not owned.may_fire:\n                owned.parked.append(job)\n",
        "",
        SIMULATION,
    ),
    Mutant(
        "a job that is early by now is handed over",
        DISPATCHER,
        "            elif job.due_ms > now_ms:  # a clock was set back\n"
        "                self.wheel.add(job.due_ms, job.key, job)\n"
        "                self.alarm()\n",
        "",
        TIMES,
    ),
    Mutant(
        "a job that was taken from the queue meanwhile is handed over",
        DISPATCHER,
        "            if owned is None or owned.held.get(job.key) is not job:\n",
        "            if owned is None or owned.held.get(job.key) is None:\n",
        (*ORDERS, "-k", "waits_for_its_turn"),
    ),
    Mutant(
        "there is no last look before the handler is called",
        DISPATCHER,
        "            batch = self._last_look(batch)\n",
        "",
        (*RULES, *TIMES),
    ),
    Mutant(
        "the last look does not ask the lease",
        DISPATCHER,
        "        if not self._gate.lease.valid():\n            for job in batch:",
        "        if False:\n            for job in batch:",
        (*RULES, *CLUSTER),
    ),
    Mutant(
        "the last look does not ask the clock",
        DISPATCHER,
        "            if job.due_ms > now_ms:\n                return self._without_early(batch, now_ms)\n",
        "            pass\n",
        ("tests/unit/test_engine_timing.py",),
    ),
    Mutant(
        "a second report of a delivery counts",
        DISPATCHER,
        "        flight = self.flights.get(job.key)\n"
        "        if flight is None or flight.job is not job:\n"
        "            return\n"
        "        del self.flights[job.key]\n"
        "        if isinstance",
        "        flight = self.flights.get(job.key)\n"
        "        if flight is None:\n"
        "            return\n"
        "        del self.flights[job.key]\n"
        "        if isinstance",
        (*DESTINATION, *BAD, *OUTCOMES, *CANCELLED),
    ),
    Mutant(
        "a job that its handler did not report is in flight forever",
        DISPATCHER,
        '                    self.report(job, RuntimeError("the handler ended without reporting this job"))\n',
        "                    pass\n",
        (*OUTCOMES, *BAD, *CANCELLED),
    ),
    Mutant(
        "a handler that raises leaves its jobs in flight",
        DISPATCHER,
        "            self._ended_by(error, batch)\n",
        "",
        (*OUTCOMES, *BAD, *CANCELLED),
    ),
    Mutant(
        "a batch whose task was cancelled before its first step is lost",
        DISPATCHER,
        "        if self._not_begun:\n            self._recall()\n",
        "",
        CANCELLED,
    ),
    Mutant(
        "a job that a handler was called for can be cancelled",
        DISPATCHER,
        "        del owned.held[key]\n        owned.handed_over[key] = job\n",
        "        owned.handed_over[key] = job\n",
        ORDERS,
    ),
    Mutant(
        "more calls are made than the app allows",
        DISPATCHER,
        "        self._free -= 1\n        number",
        "        number",
        (*OUTCOMES, "tests/unit/test_engine_timing.py"),
    ),
    Mutant(
        "a paused app hands over",
        DISPATCHER,
        "        if self.paused:\n            return 0\n",
        "",
        (*POISON, "-k", "paused"),
    ),
    Mutant(
        "a job whose destination is away is settled",
        DISPATCHER,
        "            self._hold_back(flight)\n            return\n",
        "",
        DESTINATION,
    ),
    Mutant(
        "a job that comes back to a lost shard is held",
        DISPATCHER,
        "        if owned.handed_over.pop(job.key, None) is None:\n"
        "            return  # the shard was lost: its new owner hands the job over\n",
        "        owned.handed_over.pop(job.key, None)\n",
        (*DESTINATION, *CLUSTER),
        survives="the queue hands over only what an owned shard holds, and it holds another one by then",
    ),
    Mutant(
        "a suspect goes the normal way",
        DISPATCHER,
        "if job.due_ms <= owned.suspect_until_ms or job.key in owned.suspects:",
        "if job.key in owned.suspects:",
        POISON,
    ),
    Mutant(
        "a marked job goes the normal way",
        DISPATCHER,
        "if job.due_ms <= owned.suspect_until_ms or job.key in owned.suspects:",
        "if job.due_ms <= owned.suspect_until_ms:",
        (*POISON, "-k", "moves_by_plan"),
    ),
    Mutant(
        "a stop settles what its handlers go on with",
        DISPATCHER,
        "        for job in running:\n            del self.flights[job.key]\n",
        "",
        STOP,
    ),
    Mutant(
        "a delivery that came back is shown as running for ever",
        DISPATCHER,
        "            self.show_no_more(owned, job)\n        job = job if",
        "            pass\n        job = job if",
        (*DESTINATION, "-k", "came_back_is_not_shown"),
    ),
    Mutant(
        "a shard is released before deliveries that came back are shown no more",
        LANE,
        "if not owned.handed_over and not owned.came_back]",
        "if not owned.handed_over]",
        (*DESTINATION, "-k", "rolling_restart"),
        survives="a turn settles before it releases: only a delivery that comes back between the two would be left",
    ),
    Mutant(
        "what was not taken from view during a store outage is forgotten",
        SETTLER,
        "        except SchedulerError:\n            self._outcomes",
        "        except SchedulerError:\n            self._taken_from_view(came_back)\n            self._outcomes",
        (*DESTINATION, "-k", "store_outage_kept"),
    ),
    # Quarantine
    Mutant(
        "a job that was alone at a death is tried again",
        QUARANTINE,
        "        if size == ALONE and owned.marker_ended:\n",
        "        if False:\n",
        POISON,
    ),
    Mutant(
        "a job is charged without a death",
        QUARANTINE,
        "        if size == ALONE and owned.marker_ended:\n",
        "        if size == ALONE:\n",
        POISON,
        survives="a release and a reload put the mark of a job that does not fly back, so that no other mark of this "
        "size is left",
    ),
    Mutant(
        "suspects are handed over before their marks are durable",
        QUARANTINE,
        "            marked = await self._mark(batch, level.size)\n",
        "            marked = {job.key for job in batch}\n"
        "            asyncio.ensure_future(self._mark(batch, level.size))\n",
        POISON,
    ),
    Mutant(
        "a suspect whose mark failed is handed over",
        QUARANTINE,
        "fired = [job for job in batch if job.key in marked and self._owned_shard_of(job)]",
        "fired = [job for job in batch if self._owned_shard_of(job)]",
        POISON,
        survives="a mark without an answer puts its shard in doubt, which forgets the job; and a lost shard has none",
    ),
    Mutant(
        "a window of suspects has no bound",
        QUARANTINE,
        "        room = min(window - len(self.marked[app]), self.size - self.under_way)\n",
        "        room = window\n",
        ("tests/unit/test_engine_poison.py", "-k", "test_no_more_suspects_are_marked_than_their_window_has_room_for"),
    ),
    Mutant(
        "a job is marked as alone while others fly",
        QUARANTINE,
        "            if await self._others_ended():\n",
        "            if True:\n",
        (
            "tests/unit/test_engine_poison.py",
            "-k",
            "test_a_suspect_waits_to_be_alone_for_a_while_only_and_again_when_the_long_job_has_ended",
        ),
    ),
    Mutant(
        "the wait to be alone has no end",
        QUARANTINE,
        "                return False\n            await sleep(self._clock, LOOK_MS)\n",
        "                pass\n            await sleep(self._clock, LOOK_MS)\n",
        (
            "tests/unit/test_engine_poison.py",
            "-k",
            "test_a_suspect_waits_to_be_alone_for_a_while_only_and_again_when_the_long_job_has_ended",
        ),
    ),
    Mutant(
        "the gate opens before the mark is replaced",
        QUARANTINE,
        "return outlived and job.key in await self._mark([job], ALONE - 1 - self._watches)",
        "return outlived",
        POISON,
    ),
    Mutant(
        "a watch has no end",
        QUARANTINE,
        "            outlived = self._clock.steady_ms() >= self._watched_until_ms\n",
        "            outlived = False\n",
        POISON,
    ),
    Mutant(
        "the mark of a job that was not fired stays",
        QUARANTINE,
        "        if job.key not in await self._mark([job], before):\n            return False\n",
        "",
        (
            "tests/unit/test_engine_poison.py",
            "-k",
            "test_the_others_wait_until_it_is_known_that_a_suspect_has_no_mark_that_charges_it",
        ),
    ),
    Mutant(
        "a watch does not grow",
        QUARANTINE,
        "self._clock.steady_ms() + (WATCH_MS << self._watches)",
        "self._clock.steady_ms() + WATCH_MS",
        (
            "tests/unit/test_engine_poison.py",
            "-k",
            "test_a_suspect_that_outlived_its_watch_is_not_charged_but_watched_for_longer",
        ),
    ),
    Mutant(
        "windows do not narrow",
        QUARANTINE,
        "return next((smaller for smaller in SIZES if smaller < size), ALONE)",
        "return size if size in SIZES else ALONE",
        POISON,
    ),
    # Judge, sweep, wheel, pipeline
    Mutant(
        "a policy that fails leaves a job without an outcome",
        JUDGE,
        "        except Exception as broken:  # noqa: BLE001",
        "        except ZeroDivisionError as broken:  # noqa: BLE001",
        VERDICTS,
    ),
    Mutant(
        "a wished moment is rounded down",
        JUDGE,
        "wished = now_ms + after // MS + bool(after % MS)",
        "wished = now_ms + after // MS",
        VERDICTS,
    ),
    Mutant(
        "an error with a NUL is written as it is",
        JUDGE,
        '.replace("\\0", "\\N{REPLACEMENT CHARACTER}")',
        "",
        (*BAD, "tests/servers/test_values.py"),
    ),
    Mutant("a job is due beyond the largest moment", JUDGE, "due_ms=min(due_ms, MAX_DUE_MS)", "due_ms=due_ms", BAD),
    Mutant("the sweep finds nothing", SWEEP, "            window.put(job)\n", "            pass\n", SAFETY),
    Mutant(
        "the sweep takes what is handed over",
        SWEEP,
        " and job.key not in owned.held and job.key not in owned.handed_over",
        "",
        SAFETY,
    ),
    Mutant(
        "a wheel takes a key twice",
        WHEEL,
        "            raise KeyError(key)\n",
        "            return\n",
        ("tests/unit/test_wheel.py",),
    ),
    Mutant(
        "a wheel gives out what is due next",
        WHEEL,
        "while moment is not None and moment <= now_ms:",
        "while moment is not None and moment <= now_ms + 1:",
        ("tests/unit/test_wheel.py",),
    ),
    Mutant(
        "a part of the node that a handler cancels stays ended",
        PIPELINE,
        "                task.uncancel()  # a handler that cancels all tasks must not end the node\n",
        "                raise\n",
        CANCELLED,
    ),
    Mutant(
        "a stop does not wait for handlers",
        PIPELINE,
        "clean = await self._released(self._settings.stop_timeout_ms)\n        if not clean:",
        "clean = await self._released(0)\n        if not clean:",
        STOP,
    ),
    Mutant(
        "a node that stopped uncleanly leaves the cluster",
        PIPELINE,
        "        if clean:\n            await self._leave()\n",
        "        await self._leave()\n",
        STOP,
    ),
    Mutant(
        "every node does maintenance",
        PIPELINE,
        "            if not self.membership.leads:\n                continue\n",
        "",
        (*CLUSTER, "-k", "maintenance"),
    ),
    # Destination
    Mutant(
        "a destination that is away is tried with every job",
        OUTAGE,
        "return self.ongoing and self._is_free and self._clock.steady_ms() >= self._due_ms",
        "return self.ongoing and self._is_free",
        DESTINATION,
    ),
    Mutant(
        "several probes are under way",
        OUTAGE,
        "return self._probe is None and not self._looking",
        "return not self._looking",
        ("tests/unit/test_destination_outage.py", *DESTINATION),
    ),
    Mutant(
        "a late answer of before begins the outage again",
        OUTAGE,
        "        elif not self.ongoing and ended == self.ended:\n",
        "        elif not self.ongoing:\n",
        ("tests/unit/test_destination_outage.py", *DESTINATION),
    ),
    Mutant(
        "an error of a probe ends the outage",
        OUTAGE,
        "        if isinstance(outcome, BaseException):\n            self._failed(job, outcome)\n",
        "        if False:\n            self._failed(job, outcome)\n",
        ("tests/unit/test_destination_outage.py", *DESTINATION),
    ),
)
