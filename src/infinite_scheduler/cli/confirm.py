"""A last question before something that cannot be undone."""

import sys

import typer

from infinite_scheduler.errors import InvalidRequest


def confirmed(question: str, refusal: str) -> bool:
    """The answer given at the terminal; refused if there is no terminal."""
    if not sys.stdin.isatty():
        raise InvalidRequest(refusal)
    return typer.confirm(question, err=True)
