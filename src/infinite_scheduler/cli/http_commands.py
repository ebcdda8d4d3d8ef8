"""The commands of the HTTP server with their arguments and options."""

# ruff: noqa: PLC0415 - `--help` and shell completion must not wait for settings, stores and servers to be imported

from typing import Annotated

import typer

from infinite_scheduler.cli.shared_options import SharedOptions, with_options

tokens = typer.Typer(help="Make, list and revoke tokens: who may come in by HTTP.")

TokenNameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the token, which the audit shows.")]


@tokens.callback(invoke_without_command=True)
def tokens_root(context: typer.Context) -> None:
    """Make, list and revoke tokens: who may come in by HTTP."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@with_options
def http(
    options: SharedOptions,
    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help="The address to listen on; overrides http.host.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", metavar="PORT", help="The port; 0: any free one; overrides http.port.")
    ] = None,
) -> int:
    """Answer HTTP requests for a store, without handing anything over, until SIGTERM or Ctrl-C."""
    from infinite_scheduler.cli.http import run_server

    return run_server(options, {"http.host": host, "http.port": port})


@tokens.command("create")
@with_options
def tokens_create(
    options: SharedOptions,
    name: TokenNameArgument,
    role: Annotated[str, typer.Option("--role", help="What its holder may do: read, submit or operate.")] = "read",
) -> int:
    """Make a token and print it, once: the store keeps a digest only."""
    from infinite_scheduler.cli.store_session import Intent, ask
    from infinite_scheduler.cli.tokens import create_token

    return ask(options, lambda session: create_token(session, name, role), Intent.CHANGE, own_url="tokens create")


@tokens.command("list")
@with_options
def tokens_list(options: SharedOptions) -> int:
    """List the tokens that the store keeps, with their roles; revoked ones too."""
    from infinite_scheduler.cli.store_session import ask
    from infinite_scheduler.cli.tokens import list_tokens

    return ask(options, list_tokens, own_url="tokens list")


@tokens.command("revoke")
@with_options
def tokens_revoke(options: SharedOptions, name: TokenNameArgument) -> int:
    """End a token, for all servers of this store. Its name is not used again."""
    from infinite_scheduler.cli.store_session import Intent, ask
    from infinite_scheduler.cli.tokens import revoke_token

    return ask(options, lambda session: revoke_token(session, name), Intent.CHANGE, own_url="tokens revoke")
