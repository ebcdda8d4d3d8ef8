"""The command line: `infinite-scheduler COMMAND`."""


def main() -> int:
    """Run the command named by the arguments, and return its exit code."""
    from infinite_scheduler.cli.run import run  # noqa: PLC0415 - importing the package must not need typer

    return run()
