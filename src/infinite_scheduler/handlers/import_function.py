"""Finds a handler's function by its name, as configuration files write it."""

import difflib
import importlib
import importlib.machinery
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from infinite_scheduler.errors import HandlerError

_FORM: Final = "write 'module:name', as in 'shop.orders:remind'"


def load_function(spec: str, search: Sequence[Path] = ()) -> Callable[..., Any]:
    """Import the callable named by "module:name" or "package.module:object.attribute".

    The module is looked up in the folders `search` (that of the configuration file), then in the working directory,
    then on Python's own path. The folder in which it is found goes to the front of `sys.path` and stays there, so that
    the module's own imports work, including later ones and those of worker processes.
    """
    module_name, path = _split(spec)
    folders = _distinct([*search, Path.cwd()])
    importlib.invalidate_caches()
    _prepend(_home(module_name, folders))
    module = _import(spec, module_name, folders)
    found = _attribute(spec, module, path)
    if not callable(found):
        raise HandlerError(f"handler {spec!r}: {path} in {_place(module)} is {_kind(found)}, which cannot be called")
    return found


def _split(spec: str) -> tuple[str, str]:
    module_name, colon, path = spec.partition(":")
    if not colon and "." in spec:
        module_name, _, path = spec.rpartition(".")
        if _dotted(module_name) and path.isidentifier():
            raise HandlerError(f"handler {spec!r} has no colon: did you mean '{module_name}:{path}'?")
    if not _dotted(module_name) or not _dotted(path):
        raise HandlerError(f"handler {spec!r} cannot be read: {_FORM}")
    return module_name, path


def _dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _distinct(folders: Sequence[Path]) -> list[Path]:
    return list(dict.fromkeys(folder.resolve() for folder in folders))


def _home(module_name: str, folders: Sequence[Path]) -> Path | None:
    """The first folder that contains the module or its outermost package."""
    top = module_name.partition(".")[0]
    for folder in folders:
        if importlib.machinery.PathFinder.find_spec(top, [str(folder)]) is not None:
            return folder
    return None


def _prepend(folder: Path | None) -> None:
    if folder is None:
        return
    entry = str(folder)
    if sys.path[:1] != [entry]:
        sys.path[:] = [entry, *(other for other in sys.path if other != entry)]


def _import(spec: str, module_name: str, folders: Sequence[Path]) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            looked = ", ".join(map(str, folders))
            raise HandlerError(
                f"handler {spec!r}: no module {missing!r}; looked in {looked} and in Python's own path"
            ) from error
        raise _broken_import(spec, error) from error
    except (Exception, SystemExit) as error:
        raise _broken_import(spec, error) from error


def _broken_import(spec: str, error: BaseException) -> HandlerError:
    """The last line of the error, and the last place outside of the import machinery."""
    last_line = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({error.filename}, line {error.lineno})"
    return HandlerError(f"handler {spec!r}: its module cannot be imported: {last_line}{place}")


def _attribute(spec: str, module: ModuleType, path: str) -> object:
    found: object = module
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            near = difflib.get_close_matches(name, [n for n in dir(found) if not n.startswith("_")])
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise HandlerError(f"handler {spec!r}: no {name!r} in {_place(found)}{hint}") from None
    return found


def _place(where: object) -> str:
    if isinstance(where, ModuleType):
        return f"{where.__name__} ({getattr(where, '__file__', None) or 'built in'})"
    return _kind(where)


def _kind(value: object) -> str:
    return f"class {value.__qualname__}" if isinstance(value, type) else f"{type(value).__name__} object"
