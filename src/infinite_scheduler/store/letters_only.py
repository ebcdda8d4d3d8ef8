"""The inbox of a store that keeps dead letters, and through which no topic is read."""

from collections.abc import Collection, Mapping, Sequence

from infinite_scheduler.model import Accepted, JobSpec
from infinite_scheduler.store.abilities import Abilities, Ability
from infinite_scheduler.store.inbox import DeadLetter, Inbox, LetterState, Move, TopicPosition


class LettersOnly(Inbox):
    """Refuses in words what a door that reads topics asks for; letters are for its subclasses."""

    def __init__(self, abilities: Abilities) -> None:
        self._abilities = abilities

    async def take(
        self, specs: Sequence[JobSpec], letters: Sequence[DeadLetter], moves: Sequence[Move]
    ) -> Sequence[Accepted]:
        del specs, letters, moves
        raise self._abilities.refusal(Ability.INBOX)

    async def positions(self, group: str | None = None, topic: str | None = None) -> Sequence[TopicPosition]:
        del group, topic
        raise self._abilities.refusal(Ability.INBOX)

    async def reset(self, moves: Sequence[Move]) -> None:
        del moves
        raise self._abilities.refusal(Ability.INBOX)

    async def mark(self, letter_ids: Collection[str], state: LetterState, note: str | None = None) -> None:
        del letter_ids, state, note
        raise self._abilities.refusal(Ability.INBOX)

    async def letter_states(self, letter_ids: Collection[str]) -> Mapping[str, LetterState]:
        del letter_ids
        raise self._abilities.refusal(Ability.INBOX)

    async def letter_counts(self) -> Mapping[tuple[str, str], int]:
        raise self._abilities.refusal(Ability.INBOX)

    async def live_keys(self) -> int:
        raise self._abilities.refusal(Ability.INBOX)
