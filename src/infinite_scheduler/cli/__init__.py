"""The command line: `infinite-scheduler COMMAND`."""


def main() -> int:
    """Run the command that the arguments name, and return its exit code."""
    from infinite_scheduler.cli.run import run  # noqa: PLC0415 - whoever imports the package does not need typer

    return run()
