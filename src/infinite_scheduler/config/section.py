"""What all tables of the configuration have in common."""

import ast
import inspect
import itertools

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One table of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def meaning_of(section: type[BaseModel], attribute: str) -> str:
    """The docstring below a setting, or nothing where the sources are not installed.

    Read on demand: reading them all would slow each start down.
    """
    owner = next(base for base in section.__mro__ if attribute in inspect.get_annotations(base))
    try:
        source = inspect.getsource(owner)
    except (OSError, TypeError):  # the second for a module without a file
        return ""
    for definition in ast.parse(source).body:
        for statement, below in itertools.pairwise(definition.body if isinstance(definition, ast.ClassDef) else ()):
            found = isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == attribute
            if found and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                return inspect.cleandoc(str(below.value.value))
    return ""
