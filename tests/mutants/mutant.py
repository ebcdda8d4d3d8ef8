"""One guard that can be taken out of the code."""

from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "infinite_scheduler"


@dataclass(frozen=True, slots=True)
class Mutant:
    """The code without one guard: a text that occurs exactly once in its file is replaced by another."""

    name: str
    """Which guard is gone, or what the code does instead."""

    file: str
    """Below `src/infinite_scheduler`."""

    old: str
    new: str

    tests: tuple[str, ...]
    """The smallest set that should see it, as arguments of pytest: files, node ids, and `-k` with its expression."""

    survives: str | None = None
    """Why no test can see it; without a reason, a survivor is an error."""

    def applied(self, package: Path = PACKAGE) -> str:
        """The text of the file without the guard."""
        text = (package / self.file).read_text(encoding="utf-8")
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: the old text occurs {count} times in {self.file}, not once")
        return text.replace(self.old, self.new)
