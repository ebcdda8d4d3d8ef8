"""The list of guards that `make mutants` takes out does not rot."""

from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.__main__ import main
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import PACKAGE, Mutant
from tests.mutants.trial import ROOT, Trial, copied, origin

LEAST = 150


def test_there_are_enough_and_each_has_a_name_of_its_own() -> None:
    assert len(MUTANTS) >= LEAST
    names = Counter((mutant.name, mutant.file) for mutant in MUTANTS)
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in MUTANTS}))
def test_every_guard_of_a_file_is_there_once_and_can_be_taken_out(file: str) -> None:
    for mutant in MUTANTS:
        if mutant.file == file:
            assert mutant.old != mutant.new, mutant.name
            compile(mutant.applied(), file, "exec")


def test_the_tests_of_every_guard_are_there() -> None:
    words = {word for mutant in MUTANTS for word in mutant.tests if word.startswith("tests/")}
    assert [word for word in sorted(words) if not (ROOT / word.partition("::")[0]).is_file()] == []
    assert [mutant.name for mutant in MUTANTS if not mutant.tests or not mutant.tests[0].startswith("tests/")] == []


def test_acceptance_tests_are_not_asked_as_they_run_the_built_package() -> None:
    assert [mutant.name for mutant in MUTANTS if any("tests/acceptance" in word for word in mutant.tests)] == []


def test_a_reason_is_a_sentence() -> None:
    reasons = [mutant.survives for mutant in MUTANTS if mutant.survives is not None]
    assert [reason for reason in reasons if len(reason.split()) < 6] == []


def test_a_text_that_is_not_there_once_is_refused(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text("a = 1\nb = 1\n", encoding="utf-8")
    for old, count in (("1", 2), ("2", 0)):
        with pytest.raises(ValueError, match=f"occurs {count} times"):
            Mutant("a guard", "part.py", old, "3", ("tests",)).applied(tmp_path)


def test_a_new_process_imports_the_copy_and_the_copy_lacks_the_guard() -> None:
    mutant = MUTANTS[0]
    with copied(mutant) as folder:
        assert Path(origin(folder)).is_relative_to(folder)
        assert (folder / PACKAGE.name / mutant.file).read_text(encoding="utf-8") == mutant.applied()
    assert not folder.exists()
    assert mutant.old in (PACKAGE / mutant.file).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("code", "hung", "red", "green"),
    [(0, False, False, True), (1, False, True, False), (1, True, True, False), (4, False, False, False)],
    ids=["passed", "failed", "hung", "not run"],
)
def test_tests_that_were_not_run_are_neither_red_nor_green(code: int, hung: bool, red: bool, green: bool) -> None:
    trial = Trial(code, 1.0, "FAILED tests/unit/test_a.py::test_b[c d] - assert 1 == 2\n", hung)
    assert (trial.red, trial.green) == (red, green)
    assert trial.first_red == "test_b[c d]"


def test_they_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", MUTANTS[0].name]) == 0
    assert MUTANTS[0].name in capsys.readouterr().out
    assert main(["--only", "no such guard"]) == 1
