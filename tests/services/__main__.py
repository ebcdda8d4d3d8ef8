"""Databases and Kafka for tests: python -m tests.services install|start|stop|status|run|remove."""

import argparse
import shutil
import sys

from tests.services.catalogue import each, shared_servers
from tests.services.folder import home, passing_home
from tests.services.jars import NotFetched
from tests.services.kafka import archive_classes
from tests.services.packages import MissingPackages, install
from tests.services.private import remove_left_over
from tests.services.run import run
from tests.services.server import NotStarted, Server


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    match options.action:
        case "install":
            install()
        case "start":
            start(durable=options.durable)
        case "stop":
            stop()
        case "remove":
            stop()
            shutil.rmtree(passing_home())
            shutil.rmtree(home(), ignore_errors=True)  # it may be the same one
        case "run":
            install()
            archive_classes()
            return run(options.command, durable=options.durable)
        case _:
            return status()
    return 0


def start(*, durable: bool) -> None:
    """Start the servers, until somebody stops them."""
    install()
    archive_classes()
    servers = shared_servers(durable=durable)
    each(servers, Server.start)
    for server in servers:
        print(f"{server.kind} runs: {server.url}")


def stop() -> None:
    """Stop every server of this project."""
    remove_left_over()
    each([*shared_servers(), *shared_servers(durable=True)], Server.stop)


def status() -> int:
    """Print what runs; 0 if the tests would find all they need."""
    for server in (*shared_servers(), *shared_servers(durable=True)):
        if server.pid is not None:
            print(f"{server.folder.name} runs as process {server.pid}: {server.url}")
        elif not server.durable:
            print(f"{server.folder.name} does not run")
    return int(any(server.pid is None for server in shared_servers()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.services", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("install", help="install the Debian packages that are missing, and fetch Apache Kafka")
    actions.add_parser("stop", help="stop every server of this project")
    actions.add_parser("remove", help="stop them and remove their data")
    actions.add_parser("status", help="print what runs, and where")
    start = actions.add_parser("start", help="start the servers until they are stopped")
    run = actions.add_parser("run", help="run a command, with servers for as long as it takes")
    for parser_of_action in (start, run):
        parser_of_action.add_argument("--durable", action="store_true", help="with an fsync a commit, for benchmarks")
    run.add_argument("command", nargs="+", metavar="COMMAND", help="after --")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (MissingPackages, NotFetched, NotStarted) as error:
        sys.exit(str(error))
