"""What makes the repository easy to find one's way in: one name for one thing, and texts that fit a screen."""

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "infinite_scheduler"
LONGEST_LINE = 120

ADAPTERS = {
    "accepting.py": "a port and its contract",
    "base.py": "the ports of stores and of handlers",
    "database.py": "a database of the SQL store",
    "dialect.py": "a dialect and its base class",
    "enqueue.py": "jobs in a transaction of the user's own, by database",
    "inbox.py": "a port and its adapter",
    "ledger.py": "a port and its adapter",
    "looking.py": "a port and its contract",
    "operating.py": "a port and its contract",
    "ownership.py": "a port and its adapter",
    "scheme.py": "the port of a kind of store, and its adapters",
    "session.py": "sessions of a database",
    "upkeep.py": "maintenance, by database",
}
"""The only file names that occur twice: adapters of one port, or its contract."""


def names(tree: ast.Module) -> Iterator[str]:
    """The classes and aliases of a module."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name[0].isupper() and not name.isupper() and len(name) > 1:
                yield name


def test_a_class_or_alias_has_a_name_of_its_own() -> None:
    found = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for name in names(ast.parse(path.read_text(encoding="utf-8"))):
            found[name].append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_a_file_has_a_name_of_its_own_unless_it_is_an_adapter() -> None:
    found = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name != "__init__.py":
            found[path.name].append(str(path.relative_to(SOURCE)))
    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert twice.keys() == ADAPTERS.keys(), twice


def test_markdown_is_wrapped_as_the_code_is() -> None:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    too_long = []
    for name in listed.splitlines():
        fenced = False
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1):
            fenced ^= line.lstrip().startswith("```")
            can_be_wrapped = not (fenced or line.startswith("|") or re.fullmatch(r"\s*`[^`]+`\S*", line))
            if len(line) > LONGEST_LINE and can_be_wrapped:
                too_long.append(f"{name}:{number}")
    assert too_long == []


def test_the_map_of_the_code_is_as_the_tree_is() -> None:
    page = (ROOT / "docs" / "concepts" / "layout.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b(\w+)\.py", page))
    known = {path.stem for path in SOURCE.rglob("*.py")}
    assert named - known == set(), "named, but not there"
    rooms = ("engine", "ingest", "store", "cluster")
    files = {path.stem for room in rooms for path in (SOURCE / room).glob("*.py")}
    assert files - named == set(), "there, but not named"
