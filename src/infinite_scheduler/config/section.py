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

    Read when somebody asks: reading them all would slow each start down.
    """
    owner = next(base for base in section.__mro__ if attribute in inspect.get_annotations(base))
    try:
        source = inspect.getsource(owner)
    except (OSError, TypeError):  # the second for a module without a file
        return ""
    for definition in ast.parse(source).body:
        for statement, below in itertools.pairwise(definition.body if isinstance(definition, ast.ClassDef) else ()):
            match statement, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))) if (
                    name == attribute
                ):
                    return inspect.cleandoc(text)
                case _:
                    pass
    return ""
