"""Why a job has not been handed over: a pure judgement over its record and a survey of the cluster."""

import enum

import msgspec

from infinite_scheduler.model import Attempt, JobRecord, Shard, Status
from infinite_scheduler.store.cluster_state import HeldBack
from infinite_scheduler.store.looking import Survey
from infinite_scheduler.views.node import LIVING, WORKING, NodeState, node_states, silence_ms
from infinite_scheduler.views.shard import OwnerView, shard_view
from infinite_scheduler.views.times import IsoTime, iso, relative, span

PROGRAM = "infinite-scheduler"

BUSY_MS = 1000
"""A job that is overdue by less is being handed over; longer deliveries are recorded as running."""


class Reason(enum.StrEnum):
    """What keeps a job where it is."""

    SETTLED = "settled"
    IN_FLIGHT = "in_flight"
    NOT_DUE = "not_due"
    RETRY = "retry"
    PAUSED = "paused"
    HELD_BACK = "held_back"
    NO_NODE = "no_node"
    NO_OWNER = "no_owner"
    OWNER_SILENT = "owner_silent"
    NOT_LOADED = "not_loaded"
    ON_ITS_WAY = "on_its_way"
    WAITS_FOR_PLACE = "waits_for_place"


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job is, what decides about it, and why it has not been handed over."""

    id: str
    app: str
    status: Status
    attempt: int
    due_ms: int
    table: str  # where the store keeps it
    shard: int
    owner: OwnerView | None
    line_ms: int | None
    low_ms: int | None
    reason: Reason
    why: str
    notes: tuple[str, ...] = ()
    due_at: IsoTime


def explain(record: JobRecord, survey: Survey, *, now_ms: int, lease_ms: int) -> Explanation:
    """Judge one job at one moment."""
    return _Case(record, survey, now_ms, lease_ms).explanation()


class _Case:
    """One job, and what the survey says about its surroundings."""

    def __init__(self, record: JobRecord, survey: Survey, now_ms: int, lease_ms: int) -> None:
        self.record, self.job, self.now_ms = record, record.job, now_ms
        self.view = survey.view
        self.paused = any(app.paused for app in self.view.apps if app.name == self.job.app)
        self.states = node_states(self.view, now_ms, lease_ms)
        self.nodes = {node.nonce: node for node in self.view.nodes}
        living = [node for node in self.view.nodes if self.job.app in node.apps and self.states[node.nonce] in LIVING]
        self.able = [node for node in living if self.states[node.nonce] in WORKING]
        self.holding_back = [node for node in living if self.states[node.nonce] not in WORKING]
        wanted = Shard(self.job.app, self.job.shard)
        found = next((info for info in self.view.shards if info.shard == wanted), None)
        self.shard = None if found is None else shard_view(found, self.nodes, self.states)
        self.owner = None if self.shard is None else self.shard.owner
        self.keeper = None if self.owner is None or self.owner.state not in LIVING else self.nodes[self.owner.nonce]
        self.held_back = None if self.keeper is None else self.keeper.held_back.get(self.job.app)
        unfinished = [a for a in record.attempts if a.finished_ms is None and a.attempt == self.job.attempt]
        self.running = next((a for a in unfinished if self._runs(a)), None)
        self.cut_short = next((a for a in unfinished if a is not self.running), None)

    def explanation(self) -> Explanation:
        reason, why = self._judge()
        return Explanation(
            id=self.job.id,
            app=self.job.app,
            status=self.record.status,
            attempt=self.job.attempt,
            due_ms=self.job.due_ms,
            table=self.record.kept_in or "",
            shard=self.job.shard,
            owner=self.owner,
            line_ms=self.shard.line_ms if self.shard else None,
            low_ms=self.shard.low_ms if self.shard else None,
            reason=reason,
            why=why,
            notes=() if self.record.status.final else tuple(self._notes(reason)),
            due_at=iso(self.job.due_ms),
        )

    def _judge(self) -> tuple[Reason, str]:
        if self.record.status.final:
            return Reason.SETTLED, self._settled()
        if self.running is not None and self.held_back is None:
            return Reason.IN_FLIGHT, self._in_flight(self.running)
        if self.job.due_ms > self.now_ms:
            return self._early()
        return self._overdue()

    def _settled(self) -> str:
        at = self.record.finished_ms
        moment = f" at {iso(at)}, {relative(at, self.now_ms)}" if at is not None else ""
        error = f": {self.record.error}" if self.record.error else ""
        match self.record.status:
            case Status.DONE:
                return f"it was handed over, by attempt {self.job.attempt}, and is done{moment}"
            case Status.FAILED:
                return f"it failed for good{moment}, after {self._attempts()}{error}"
            case Status.EXPIRED:
                return f"it was too late to be of use and expired{moment}{error}"
            case Status.CANCELLED | Status.PENDING:
                return f"it was cancelled{moment}"

    def _attempts(self) -> str:
        return "1 attempt" if self.job.attempt == 1 else f"{self.job.attempt} attempts"

    def _runs(self, attempt: Attempt) -> bool:
        """Is its end still to come? Not if its node is gone, or was started again, or if the job was moved since."""
        node = self.keeper
        if node is None or node.node_id != attempt.node or self.job.due_ms > attempt.started_ms:
            return False
        return node.started_ms + min(0, node.clock_offset_ms or 0) <= attempt.started_ms  # by the earlier clock

    def _in_flight(self, running: Attempt) -> str:
        since = f"since {iso(running.started_ms)}, {relative(running.started_ms, self.now_ms)}"
        return f"its handler runs {since}, on node {running.node}, as attempt {running.attempt}"

    def _early(self) -> tuple[Reason, str]:
        coming = f"{relative(self.job.due_ms, self.now_ms)}, at {iso(self.job.due_ms)}"
        failed = self._last_failure()
        if failed is None:
            return Reason.NOT_DUE, f"it is not due yet: it is due {coming}"
        return Reason.RETRY, f"attempt {failed.attempt} failed ({failed.error}); attempt {self.job.attempt} is {coming}"

    def _last_failure(self) -> Attempt | None:
        failed = [a for a in self.record.attempts if a.error is not None and a.attempt < self.job.attempt]
        return max(failed, key=lambda attempt: attempt.attempt, default=None)

    def _overdue(self) -> tuple[Reason, str]:
        late_ms = self.now_ms - self.job.due_ms
        overdue = f"it has been due for {span(late_ms)}"
        if self.paused:
            return Reason.PAUSED, f"{overdue}, but app {self.job.app} is paused"
        if not self.able:
            return Reason.NO_NODE, f"{overdue}, but {self._no_node()}"
        if self.shard is None or self.owner is None:
            return Reason.NO_OWNER, f"{overdue}, but its shard has no owner at the moment; a node will take it"
        if self.owner.state not in LIVING:
            return Reason.OWNER_SILENT, f"{overdue}, but {self._silence()}; another node takes its shards over"
        if self.held_back is not None:
            return Reason.HELD_BACK, f"{overdue}, but {self._hold(self.held_back)}"
        if self.shard.line_ms <= self.job.due_ms:
            return Reason.NOT_LOADED, (
                f"{overdue}, but its owner has loaded its shard only up to {iso(self.shard.line_ms)}: "
                "the memory budget may be full, or the owner has just started"
            )
        if late_ms < BUSY_MS:
            return Reason.ON_ITS_WAY, f"{overdue}: it is being handed over right now"
        return Reason.WAITS_FOR_PLACE, (
            f"{overdue} and its owner is alive: it waits for a free slot (concurrency), "
            "is still to be read from a backlog, or its outcome is about to be written"
        )

    def _hold(self, held_back: HeldBack) -> str:
        since = f"since {iso(held_back.since_ms)}, {relative(held_back.since_ms, self.now_ms)}"
        name = "" if self.owner is None else f"node {self.owner.node} "
        return f"{name}holds app {self.job.app} back {since}: {held_back.reason}"

    def _silence(self) -> str:
        if self.owner is None or self.owner.state is None:
            return "its owner is gone without having released its shard"
        name = f"its owner {self.owner.node}"
        if self.owner.state is NodeState.DEAD:
            return f"the process of {name} has ended"
        node = self.nodes[self.owner.nonce]
        return f"{name} has been silent for {span(silence_ms(node, self.view, self.now_ms))}"

    def _no_node(self) -> str:
        """Why no node hands over jobs of this app."""
        if not self.holding_back:
            return f"no running node has a handler for app {self.job.app}"
        each = [f"{node.node_id} is {_HELD_BACK[self.states[node.nonce]]}" for node in self.holding_back]
        return f"no node with a handler for app {self.job.app} takes shards: {', '.join(each)}"

    def _notes(self, reason: Reason) -> list[str]:
        """What will matter when it is due, and what to do."""
        app = self.job.app
        notes = []
        if self.held_back is not None:
            if reason is not Reason.HELD_BACK:
                notes.append(self._hold(self.held_back))
            notes.append("one job at a time probes the destination; all go on by themselves when it takes one")
        if self.paused:
            notes.append(f"app {app} is paused; resume it: {PROGRAM} apps resume {app}")
        for node in self.holding_back if not self.able else ():
            if self.states[node.nonce] is NodeState.CLOCK_OFF:
                notes.append(f"node {node.node_id}: set its machine's clock, with chrony or another NTP service")
            else:
                notes.append(f"node {node.node_id} was drained; resume it: {PROGRAM} nodes resume {node.node_id}")
        if not self.able and not self.holding_back:
            notes.append(f"no node runs app {app}; start one: {PROGRAM} serve --config FILE")
        elif reason in (Reason.NOT_DUE, Reason.RETRY) and self.owner and self.owner.state in _GONE:
            notes.append(f"{self._silence()}; another node takes its shards over")
        if self.cut_short is not None:
            notes.append(_lost(self.cut_short))
        failed = self._last_failure()
        if failed is not None and reason is not Reason.RETRY:
            notes.append(f"attempt {failed.attempt} failed: {failed.error}")
        return notes


def _lost(attempt: Attempt) -> str:
    began = f"attempt {attempt.attempt} began at {iso(attempt.started_ms)} on node {attempt.node}"
    return f"{began}, which has ended or lost the job since: it is handed over again, as the same attempt"


_GONE = (NodeState.SILENT, NodeState.DEAD, None)
_HELD_BACK = {
    NodeState.DRAINING: "draining, as an operator asked",
    NodeState.DRAINED: "drained, as an operator asked",
    NodeState.CLOCK_OFF: "held back, since its clock differs too much from the store's",
}
