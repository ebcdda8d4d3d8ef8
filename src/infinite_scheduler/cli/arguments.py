"""Arguments and options that several commands have."""

# ruff: noqa: PLC0415 - completions are looked up when a shell asks for them

from typing import Annotated

import typer


def _apps(context: typer.Context) -> list[str]:
    from infinite_scheduler.cli.completion import app_names

    return app_names(context)


AppArgument = Annotated[str, typer.Argument(metavar="APP", help="The name of an app.", autocompletion=_apps)]
AppOrAll = Annotated[
    str | None, typer.Argument(metavar="[APP]", help="The name of an app; all if left out.", autocompletion=_apps)
]
AppOption = Annotated[
    str | None, typer.Option("--app", metavar="APP", help="Only jobs of this app.", autocompletion=_apps)
]
JobIdText = Annotated[str, typer.Argument(metavar="JOB", help="The id of a job.")]
JobIds = Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="The ids of jobs.")]
At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="MOMENT", help="When: 2030-01-31T09:00:00Z, without a zone, +90s, 'in 5m', now or epoch ms."
    ),
]
In = Annotated[str | None, typer.Option("--in", metavar="DELAY", help="After how long: 90s, 5m, 1h30m, 2d.")]
Kafka = Annotated[
    str | None, typer.Option("--kafka", metavar="HOST:PORT", help="The Kafka brokers; overrides the configuration.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
PreviewOnly = Annotated[
    bool, typer.Option("--preview", help="Only show how many match, and ten of them; change nothing.")
]
