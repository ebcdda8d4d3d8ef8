"""The commands about Kafka with their arguments and options: topics, ingest, dead letters."""

# ruff: noqa: PLC0415 - `--help` and shell completion must not wait for settings, stores and Kafka to be imported

from typing import Annotated

import typer

from infinite_scheduler.cli.arguments import At, In, Kafka, PreviewOnly, Yes
from infinite_scheduler.cli.shared_options import SharedOptions, with_options

topics = typer.Typer(help="Create the Kafka topics that jobs come from and go to.")
ingest = typer.Typer(help="Look at the topics that bring jobs, and set how far they are read.")
dlq = typer.Typer(help="Look at messages that could not become jobs, replay or drop them.")


def _presets() -> list[str]:
    from infinite_scheduler.kafka.topics import PRESETS

    return list(PRESETS)


def _letter_states() -> list[str]:
    from infinite_scheduler.store.inbox import LetterState

    return list(LetterState)


def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


LetterIds = Annotated[list[str] | None, typer.Argument(metavar="LETTER...", help="The ids of dead letters.")]
LetterIdText = Annotated[str, typer.Argument(metavar="LETTER", help="The id of a dead letter.")]
TopicName = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Only this topic.")]
GroupName = Annotated[str | None, typer.Option("--group", metavar="NAME", help="Only this consumer group.")]
State = Annotated[
    str | None,
    typer.Option(
        "--state",
        help="Only dead letters that are unsent, sent, kept, refused, replayed or dropped.",
        autocompletion=_letter_states,
    ),
]

Before = Annotated[
    str | None, typer.Option("--before", metavar="MOMENT", help="Only those that failed before this time.")
]


@topics.callback(invoke_without_command=True)
def topics_root(context: typer.Context) -> None:
    """Create the Kafka topics that jobs come from and go to."""
    _help_without_command(context)


@ingest.callback(invoke_without_command=True)
def ingest_root(context: typer.Context) -> None:
    """Look at the topics that bring jobs, and set how far they are read."""
    _help_without_command(context)


@dlq.callback(invoke_without_command=True)
def dlq_root(context: typer.Context) -> None:
    """Look at messages that could not become jobs, replay or drop them."""
    _help_without_command(context)


@topics.command("create")
@with_options
def topics_create(
    options: SharedOptions,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset", help="The topics of a documented system: sms-retry or ingest.", autocompletion=_presets
        ),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic to create; may be repeated.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, max=100_000, help="How many partitions each of them gets.")
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option(
            "--replication", min=1, max=32_767, help="How many brokers keep each message; 3, or all there are."
        ),
    ] = None,
    retention: Annotated[
        str | None, typer.Option("--retention", metavar="DELAY", help="How long messages are kept: 24h, 7d.")
    ] = None,
    kafka: Kafka = None,
) -> int:
    """Create missing topics. Existing ones are left as they are, with a note of how they differ."""
    from infinite_scheduler.cli.make_topics import create_topics

    shape = {"partitions": partitions, "replication": replication}
    return create_topics(options, kafka, preset=preset, names=topic or [], shape=shape, retention=retention)


@ingest.command("status")
@with_options
def ingest_status(options: SharedOptions, topic: TopicName = None, group: GroupName = None, kafka: Kafka = None) -> int:
    """Say whether the topics that bring jobs are read, by which nodes, and how far.

    Ends with 1 if one is not ready, or if an app is held back.
    """
    from infinite_scheduler.cli.ingest import show_status
    from infinite_scheduler.cli.store_session import ask
    from infinite_scheduler.store.abilities import Ability

    return ask(options, lambda session: show_status(session, topic, group), kafka=kafka, needs=Ability.INBOX)


@ingest.command("offsets")
@with_options
def ingest_offsets(
    options: SharedOptions,
    reset: Annotated[
        list[str] | None,
        typer.Option(
            "--reset",
            metavar="TOPIC[:PARTITION]=WHERE",
            help="Read from elsewhere: earliest, latest, an offset or a time; may be repeated.",
        ),
    ] = None,
    topic: TopicName = None,
    group: GroupName = None,
    yes: Yes = False,
    kafka: Kafka = None,
) -> int:
    """List how far topics are read, by the store and by Kafka, or set it."""
    from infinite_scheduler.cli.ingest import list_offsets, reset_offsets
    from infinite_scheduler.cli.store_session import Intent, ask
    from infinite_scheduler.store.abilities import Ability

    if reset:
        return ask(
            options,
            lambda session: reset_offsets(session, reset, topic, group, yes=yes),
            Intent.CHANGE,
            kafka=kafka,
            needs=Ability.INBOX,
            own_url="ingest offsets --reset",
        )
    return ask(options, lambda session: list_offsets(session, topic, group), kafka=kafka, needs=Ability.INBOX)


@dlq.command("list")
@with_options
def dlq_list(
    options: SharedOptions,
    topic: TopicName = None,
    group: GroupName = None,
    state: State = None,
    before: Before = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many at most.")] = 100,
    every: Annotated[bool, typer.Option("--all", help="All of them, however many.")] = False,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="LETTER", help="Continue after this one, the last one of a list.")
    ] = None,
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first.")] = False,
) -> int:
    """List dead letters: messages that could not become jobs, and why. The newest first."""
    from infinite_scheduler.cli.dlq import list_letters, read_filters
    from infinite_scheduler.cli.store_session import ask

    return ask(
        options,
        lambda session: list_letters(
            session,
            read_filters(session, topic=topic, group=group, state=state, before=before, cursor=cursor, oldest=oldest),
            None if every else limit,
        ),
    )


@dlq.command("show")
@with_options
def dlq_show(options: SharedOptions, letter: LetterIdText) -> int:
    """Show everything about one dead letter: the message as it came, and what happened to it."""
    from infinite_scheduler.cli.dlq import show_letter
    from infinite_scheduler.cli.store_session import ask

    return ask(options, lambda session: show_letter(session, letter))


@dlq.command("replay")
@with_options
def dlq_replay(
    options: SharedOptions,
    letters: LetterIds = None,
    every: Annotated[
        bool, typer.Option("--all", help="All that match; dropped ones only with --state dropped.")
    ] = False,
    topic: TopicName = None,
    group: GroupName = None,
    state: State = None,
    before: Before = None,
    at: At = None,
    delay: In = None,
    zone: Annotated[
        str | None, typer.Option("--zone", metavar="NAME", help="The zone of times without a zone: Europe/Berlin.")
    ] = None,
    preview: PreviewOnly = False,
    yes: Yes = False,
) -> int:
    """Read dead letters again by the current rules, and accept them as jobs. What is still bad says why, and stays."""
    from infinite_scheduler.cli.dlq_changes import When, check_choice, replay_all, replay_letters
    from infinite_scheduler.cli.store_session import Intent, ask

    moment = When(at, delay, zone)
    filters = {"topic": topic, "group": group, "state": state, "before": before}
    check_choice(letters or (), filters, every=every, preview=preview)
    if letters:
        return ask(options, lambda session: replay_letters(session, letters, moment), Intent.CHANGE)
    return ask(options, lambda session: replay_all(session, filters, moment, preview=preview, yes=yes), Intent.CHANGE)


@dlq.command("drop")
@with_options
def dlq_drop(
    options: SharedOptions,
    letters: LetterIds = None,
    every: Annotated[bool, typer.Option("--all", help="All that match and are not jobs.")] = False,
    topic: TopicName = None,
    group: GroupName = None,
    state: State = None,
    before: Before = None,
    preview: PreviewOnly = False,
    yes: Yes = False,
) -> int:
    """Drop dead letters that nobody wants: they are not sent any more, and can be replayed until they are deleted."""
    from infinite_scheduler.cli.dlq_changes import check_choice, drop_all, drop_letters
    from infinite_scheduler.cli.store_session import Intent, ask

    filters = {"topic": topic, "group": group, "state": state, "before": before}
    check_choice(letters or (), filters, every=every, preview=preview)
    if letters:
        return ask(options, lambda session: drop_letters(session, letters), Intent.CHANGE)
    return ask(options, lambda session: drop_all(session, filters, preview=preview, yes=yes), Intent.CHANGE)
