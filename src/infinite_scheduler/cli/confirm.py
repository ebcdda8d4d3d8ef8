"""A last question before something that cannot be taken back."""

import sys

import typer

from infinite_scheduler.errors import InvalidRequest


def confirmed(question: str, refusal: str) -> bool:
    """What somebody at the terminal says to it; where nobody can be asked, it is refused."""
    if not sys.stdin.isatty():
        raise InvalidRequest(refusal)
    return typer.confirm(question, err=True)
