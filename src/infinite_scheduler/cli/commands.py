"""Every command with its arguments and options. What a command does is in a module that is loaded when it runs."""

# ruff: noqa: PLC0415 - `--help` and shell completion must not wait for settings, stores and tables to be imported

from typing import Annotated

import typer

from infinite_scheduler.cli.arguments import AppArgument, AppOrAll, At, In, JobIdText
from infinite_scheduler.cli.http_commands import http, tokens
from infinite_scheduler.cli.job_commands import jobs
from infinite_scheduler.cli.kafka_commands import dlq, ingest, topics
from infinite_scheduler.cli.shared_options import Debug, Json, SharedOptions, with_options

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="The name of a node, as `nodes` lists it.")]

app = typer.Typer(
    help="Give it a message and a time: it hands the message over at that time, never early, never lost.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
apps = typer.Typer(help="Look at apps, pause and resume them, count their jobs.")
nodes = typer.Typer(help="Look at nodes, drain and resume them.")
app.add_typer(jobs, name="jobs")
app.add_typer(apps, name="apps")
app.add_typer(nodes, name="nodes")
app.add_typer(topics, name="topics")
app.add_typer(ingest, name="ingest")
app.add_typer(dlq, name="dlq")
app.add_typer(tokens, name="tokens")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"infinite-scheduler {version('infinite-scheduler')}")
        raise typer.Exit


def _priorities() -> list[str]:
    from infinite_scheduler.model import Priority

    return [priority.name.lower() for priority in Priority]


def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Give it a message and a time: it hands the message over at that time, never early, never lost."""
    del version
    _help_without_command(context)


@apps.callback(invoke_without_command=True)
def apps_root(context: typer.Context) -> None:
    """Look at apps, pause and resume them."""
    _help_without_command(context)


@nodes.callback(invoke_without_command=True)
@with_options
def nodes_root(options: SharedOptions, context: typer.Context) -> int:
    """Look at nodes, drain and resume them; without a command: list them."""
    if context.invoked_subcommand is None:
        return _list_nodes(options)
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"{param.opts[0]} goes after {context.invoked_subcommand}", context)
    return 0


def _list_nodes(options: SharedOptions) -> int:
    from infinite_scheduler.cli.cluster import list_nodes
    from infinite_scheduler.cli.store_session import ask

    return ask(options, list_nodes)


@app.command()
def demo(
    kafka: Annotated[
        str | None,
        typer.Option("--kafka", metavar="HOST:PORT", help="Brokers instead of the embedded one; uses its own topics."),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="A store instead of a temporary file.")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """See it work: five failed SMS, from SMS_Retry through the store to SMS_Send. Takes about 15 s."""
    del debug
    from infinite_scheduler.cli.demo import run_demo

    return run_demo(kafka=kafka, store=store, as_json=json)


@app.command()
@with_options
def serve(
    options: SharedOptions,
    kafka: Annotated[
        str | None,
        typer.Option("--kafka", metavar="HOST:PORT", help="The Kafka brokers; overrides the configuration."),
    ] = None,
    node_id: Annotated[
        str | None,
        typer.Option("--node-id", metavar="ID", help="The name of the node in lists and logs."),
    ] = None,
) -> int:
    """Run a node: it hands over the jobs of the configured apps until SIGTERM or Ctrl-C."""
    from infinite_scheduler.cli.serve import run_node

    return run_node(options, {"kafka.bootstrap_servers": kafka, "node.id": node_id})


app.command()(http)


@app.command()
@with_options
def migrate(
    options: SharedOptions,
    create: Annotated[bool, typer.Option("--create", help="Create the database itself, if it is missing.")] = False,
    days: Annotated[int, typer.Option("--days", min=0, max=366, help="Days ahead to create tables for.")] = 40,
) -> int:
    """Prepare a store: the schema, the configured apps and their tables for the days ahead."""
    from infinite_scheduler.cli.migrate import prepare_store

    return prepare_store(options, create=create, days=days)


@app.command()
@with_options
def schedule(
    options: SharedOptions,
    name: AppArgument,
    at: At = None,
    delay: In = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="JSON", help="What the handler receives; null if left out.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--from", metavar="FILE", help="Schedule many: one JSON object per line; - reads standard input."),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="With --from: accept the good lines although others are bad.")
    ] = False,
    priority: Annotated[
        str | None, typer.Option("--priority", help="high, normal or low.", autocompletion=_priorities)
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--idempotency-key", "--key", help="A repeated key answers with the first job."),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A word to find the job by; may be repeated.")] = None,
    job_name: Annotated[str | None, typer.Option("--name", help="A name for people.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="A group for people.")] = None,
    request_id: Annotated[str | None, typer.Option("--request-id", help="An id for log lines.")] = None,
) -> int:
    """Schedule a job for an app, or many from a file. Acknowledged jobs are durable."""
    from infinite_scheduler.cli.schedule import ScheduleOptions, schedule_file, schedule_one

    fields = {
        "priority": priority,
        "idempotency_key": key,
        "tags": tag or None,
        "job_name": job_name,
        "group": group,
        "request_id": request_id,
    }
    job_options = ScheduleOptions(app=name, at=at, delay=delay, data=data, fields=fields)
    if file is not None:
        return schedule_file(options, job_options, file, skip_bad=skip_bad)
    return schedule_one(options, job_options, skip_bad=skip_bad)


@app.command()
@with_options
def explain(options: SharedOptions, job: JobIdText) -> int:
    """Say where a job is, which node owns it, and why it has not been handed over."""
    from infinite_scheduler.cli.jobs import explain_job
    from infinite_scheduler.cli.store_session import ask

    return ask(options, lambda session: explain_job(session, job))


@apps.command("list")
@with_options
def apps_list(options: SharedOptions) -> int:
    """List the apps, with their nodes and the outcomes of their jobs. Ends with 1 if an app is held back."""
    from infinite_scheduler.cli.cluster import list_apps
    from infinite_scheduler.cli.store_session import ask

    return ask(options, list_apps)


@apps.command("pause")
@with_options
def apps_pause(options: SharedOptions, name: AppArgument) -> int:
    """Stop handing over jobs of an app, on all nodes, until it is resumed; jobs are still accepted."""
    from infinite_scheduler.cli.cluster import pause_app
    from infinite_scheduler.cli.store_session import Intent, ask

    return ask(options, lambda session: pause_app(session, name), Intent.ADD, app=name)


@apps.command("resume")
@with_options
def apps_resume(options: SharedOptions, name: AppArgument) -> int:
    """Hand over the jobs of a paused app again, including those that have become due meanwhile."""
    from infinite_scheduler.cli.cluster import resume_app
    from infinite_scheduler.cli.store_session import Intent, ask

    return ask(options, lambda session: resume_app(session, name), Intent.ADD, app=name)


@apps.command("recount")
@with_options
def apps_recount(options: SharedOptions, name: AppOrAll = None) -> int:
    """Count anew how many jobs of an app wait, or of each, and correct the counter. Nothing else waits for it."""
    from infinite_scheduler.cli.cluster import recount_apps
    from infinite_scheduler.cli.store_session import Intent, ask

    return ask(options, lambda session: recount_apps(session, name), Intent.CHANGE)


@nodes.command("list")
@with_options
def nodes_list(options: SharedOptions) -> int:
    """List the nodes, whether they are alive, what they own, and how far their clocks are from the store's."""
    return _list_nodes(options)


@nodes.command("drain")
@with_options
def nodes_drain(
    options: SharedOptions,
    node: NodeArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the node owns nothing.")] = False,
) -> int:
    """Ask a node to release its shards and to take none, until it is resumed or restarted."""
    from infinite_scheduler.cli.cluster import drain_node
    from infinite_scheduler.cli.store_session import Intent, ask

    return ask(options, lambda session: drain_node(session, node, wait=wait), Intent.CHANGE)


@nodes.command("resume")
@with_options
def nodes_resume(options: SharedOptions, node: NodeArgument) -> int:
    """Let a drained node take shards again."""
    from infinite_scheduler.cli.cluster import resume_node
    from infinite_scheduler.cli.store_session import Intent, ask

    return ask(options, lambda session: resume_node(session, node), Intent.CHANGE)
