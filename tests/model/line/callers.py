"""The callers: inserts from any door, a user's own transactions, cancel and reschedule."""

from __future__ import annotations

from tests.model.line.state import (
    ANSWERED,
    ASKED,
    CANCEL,
    EXCLUSIVE,
    FOUND_RELEASED,
    GIVING_UP,
    IN_TRANSACTION,
    NO_LOCK,
    PENDING,
    RELEASED,
    SAW_LINE,
    SHARE,
    START,
    UNAVAILABLE,
    Caller,
    ChangeRequest,
    Row,
    State,
    Wake,
)
from tests.model.line.variant import Change, Insert, Variant, acknowledge, free, with_caller, with_row
from tests.model.search import Step


def caller_steps(variant: Variant, state: State, number: int, out: list[Step]) -> None:
    """What the caller of this number may do next."""
    caller, what = state.callers[number], variant.scenario.callers[number]
    if caller.phase in (ANSWERED, UNAVAILABLE):
        return
    if isinstance(what, Insert):
        _insert(variant, state, number, what, out)
    elif state.rows[what.job]:
        _change(variant, state, number, what, out)


def _request_number(variant: Variant, state: State, number: int) -> int:
    """The id of a request, drawn when its transaction begins: ids do not come in the order of commits."""
    if variant.on["requests_are_read_without_cursor"]:  # then their order is nothing to anybody: they only differ
        return number
    return 1 + sum(caller.phase != START for caller in state.callers)


def _insert(variant: Variant, state: State, number: int, what: Insert, out: list[Step]) -> None:
    caller = state.callers[number]
    if caller.phase == IN_TRANSACTION:
        out.append(_commit_insert(variant, state, number, what, caller))
        return
    unlocked_at_once = (
        what.user and variant.on["requests_are_read_without_cursor"] and variant.on["user_transaction_always_wakes"]
    )
    if unlocked_at_once:  # it reads nothing: its beginning is nothing that anybody could notice
        out.append(_commit_insert(variant, state, number, what, caller._replace(number=number)))
        return
    if caller.phase == START and not what.user and not variant.on["line_is_read_under_lock"]:
        saw = with_caller(state, number, Caller(SAW_LINE, line=state.line))
        out.append(Step(("caller", number, "sees line", state.line), saw))
        return
    lock = NO_LOCK if what.user else variant.lock("insert_holds_lock", SHARE)
    if free(state, lock):
        line = caller.line if caller.phase == SAW_LINE else state.line
        begun = Caller(IN_TRANSACTION, lock, line, number=_request_number(variant, state, number))
        label = ("caller", number, "begins to insert", what.rows, "line", line)
        out.append(Step(label, with_caller(state, number, begun)))


def _commit_insert(variant: Variant, state: State, number: int, what: Insert, caller: Caller) -> Step:
    """The rows, and one wake that names those before the line [3]."""
    after = state
    for job, due in what.rows:
        after = with_row(after, job, Row(due, due))
    always = what.user and variant.on["user_transaction_always_wakes"]
    named = what.rows if always else tuple(row for row in what.rows if row[1] < caller.line)
    if not variant.on["wake_names_every_row"]:
        named = named[:1]
    if named and (variant.on["insert_wakes_owner"] or what.user):
        after = after._replace(wakes=after.wakes | {Wake(named, caller.number)})
    label = ("caller", number, "commits its insert", what.rows, "wake names", named)
    return Step(label, with_caller(after, number, Caller(ANSWERED)))


def _change(variant: Variant, state: State, number: int, what: Change, out: list[Step]) -> None:
    caller = state.callers[number]
    if caller.phase in (ASKED, GIVING_UP):
        _give_up(variant, state, number, ChangeRequest(what.job, what.due), out)
    elif caller.phase == IN_TRANSACTION:
        out.append(_commit_change(variant, state, number, ChangeRequest(what.job, what.due)))
    else:
        _begin_change(variant, state, number, what, out)


def _name(ask: ChangeRequest | Change) -> str:
    return f"cancels job {ask.job}:" if ask.due == CANCEL else f"reschedules job {ask.job} to {ask.due}:"


def _begin_change(variant: Variant, state: State, number: int, what: Change, out: list[Step]) -> None:
    """Under the share lock; at a shard found released, under the exclusive one [1, 7]."""
    again = state.callers[number].phase == FOUND_RELEASED
    lock = (
        variant.lock("released_change_locks_exclusively", EXCLUSIVE)
        if again
        else variant.lock("change_holds_lock", SHARE)
    )
    if not free(state, lock):
        return
    decides = again and (state.owner == RELEASED or not variant.on["released_shard_is_checked_again"])
    row = state.rows[what.job]
    begun = Caller(IN_TRANSACTION, lock, state.line, row, _request_number(variant, state, number), state.owner, decides)
    label = ("caller", number, _name(what), "begins, line", state.line, row, "decides itself" if decides else "")
    out.append(Step(label, with_caller(state, number, begun)))


def _commit_change(variant: Variant, state: State, number: int, ask: ChangeRequest) -> Step:
    """Too late; the owner is asked; nobody is there to ask; or compare-and-set on the row [7]."""
    caller, who = state.callers[number], ("caller", number, _name(ask))
    seen = caller.row
    assert seen
    if seen.status != PENDING:
        return Step((*who, "too late"), with_caller(state, number, Caller(ANSWERED)))
    if seen.due < caller.line and not caller.decides:
        if caller.owner == RELEASED:
            return Step((*who, "nobody to ask"), with_caller(state, number, Caller(FOUND_RELEASED)))
        asked = with_caller(state, number, Caller(ASKED))
        return Step((*who, "writes a request"), asked._replace(asks=state.asks | {ask}))
    if state.rows[ask.job] != seen:
        return Step((*who, "the row has changed, once more"), with_caller(state, number, Caller(START)))
    after, violation = acknowledge(state, ask, variant.on["reschedule_writes_entry.caller"])
    if ask.due != CANCEL and ask.due < caller.line and variant.on["reschedule_wakes_owner"]:
        after = after._replace(wakes=after.wakes | {Wake(((ask.job, ask.due),), caller.number)})
    return Step((*who, "acknowledged"), with_caller(after, number, Caller(ANSWERED)), violation)


def _give_up(variant: Variant, state: State, number: int, ask: ChangeRequest, out: list[Step]) -> None:
    """The owner is silent: the request is taken back; if it was consumed, the decision counts [7]."""
    who = ("caller", number, _name(ask))
    if state.callers[number].phase == ASKED:
        if free(state, SHARE):
            after = with_caller(state, number, Caller(GIVING_UP, SHARE))
            out.append(Step((*who, "GIVES UP, begins"), after, progress=False))
    elif ask in state.asks:
        after = with_caller(state, number, Caller(UNAVAILABLE))._replace(asks=state.asks - {ask})
        out.append(Step((*who, "takes its request back, Unavailable"), after))
    elif variant.on["decided_request_is_not_withdrawn"]:
        out.append(Step((*who, "was decided, the decision counts"), with_caller(state, number, Caller(ANSWERED))))
    else:
        violation = "respected: Unavailable, though the request was decided"
        out.append(Step((*who, "Unavailable"), with_caller(state, number, Caller(UNAVAILABLE)), violation))
