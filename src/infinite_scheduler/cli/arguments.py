"""Arguments and options that several commands have."""

from typing import Annotated

import typer

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
