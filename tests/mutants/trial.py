"""Trying a fault: a copy of the sources, the fault in it, and the test that must go red.

The keeper and all that comes of it start with a clean environment, so no variable can tell them
where the copy is: each copy has an interpreter in which it is what is installed.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import monotonic

from tests.mutants import subprocess_limit
from tests.mutants.fault import ROOT, SOURCE, Fault

_LIMIT_S = 180
_GREEN_LIMIT_S = 1200  # for all tests of all faults, one after the other
_TEST_LIMIT_S = 60
_PASSED, _FAILED = 0, 1
"""How pytest ends when every test passed, and when one failed; it has other ways to end."""


class TrialResult(StrEnum):
    """What became of a fault."""

    KILLED = "killed"
    SURVIVED = "survived"
    BROKEN = "broken"  # the test could not be run: nothing was shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a trial ended."""

    fault: Fault
    verdict: TrialResult
    seconds: float
    output: str

    @property
    def reason(self) -> str:
        """The first line in which pytest says what went wrong."""
        lines = self.output.splitlines()
        return next((line[1:].strip() for line in lines if line.startswith("E ")), "")


@contextmanager
def copied_sources() -> Iterator["Copy"]:
    """A copy of its own, as the sources are now; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="longshore-mutants-") as folder:
        source = Path(folder).resolve() / "src"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
        yield Copy(source, _interpreter_with(source))


def _interpreter_with(source: Path) -> Path:
    """One in whose environment ``source`` is installed, with all else that is installed here."""
    folder = source.with_name("venv")
    venv.create(folder, symlinks=True)
    places = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", "venv", vars=places))
    # In this order; the checkout is there for `verification`. That the sources themselves are
    # installed here does no harm: the file that says so is read only in an environment's own
    # folder.
    lines = f"{source}\n{sysconfig.get_path('purelib')}\n{ROOT}\n"
    (packages / "longshore.pth").write_text(lines)
    programs = Path(sysconfig.get_path("scripts", "venv", vars=places))
    python = programs / "python"
    program = programs / "longshore"
    program.write_text(
        f"#!{python}\nimport sys\n"
        "from longshore.interfaces.cli.main import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    return python


class Copy:
    """Sources into which one fault at a time is planted, and an interpreter that has them."""

    def __init__(self, source: Path, python: Path) -> None:
        self._source = source
        self._python = str(python)

    def try_out(self, fault: Fault) -> Outcome:
        """Plant the fault, run its test, and take the fault out again."""
        started = monotonic()
        with self._planted(fault):
            code, output = self._run_tests([fault.caught_by])
        verdicts = {_PASSED: TrialResult.SURVIVED, _FAILED: TrialResult.KILLED}
        return Outcome(
            fault=fault,
            verdict=verdicts.get(code, TrialResult.BROKEN),
            seconds=monotonic() - started,
            output=output,
        )

    def problem_without_faults(self, tests: list[str]) -> str | None:
        """Why trials would prove nothing, if so: the tests must be green as long as there is no
        fault, and it must be this copy that they import."""
        imported = self._run("-c", "import longshore; print(longshore.__file__)")[1].strip()
        if not Path(imported).is_relative_to(self._source):
            return f"the tests would import {imported}, not the copy in {self._source}"
        code, output = self._run_tests(tests, limit_s=_GREEN_LIMIT_S)
        return None if code == _PASSED else f"the tests are not green without any fault:\n{output}"

    @contextmanager
    def _planted(self, fault: Fault) -> Iterator[None]:
        path = fault.change.file(self._source / "longshore")
        whole = path.read_text()
        self._write(path, fault.change.applied(whole, fault=fault.name))
        try:
            yield
        finally:
            self._write(path, whole)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        # What was compiled from the other text may look as if it fitted this one.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()

    def _run_tests(self, tests: list[str], limit_s: int = _LIMIT_S) -> tuple[int, str]:
        nodes = [f"tests/{test}" for test in tests]
        options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={_TEST_LIMIT_S}"]
        return self._run("-m", "pytest", *options, *nodes, limit_s=limit_s)

    def _run(self, *arguments: str, limit_s: int = _LIMIT_S) -> tuple[int, str]:
        # No path goes before what is installed; compiled files are kept from trial to trial.
        changed = {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": ""}
        # The rest must be as it is: where the shell finds things, where temporary files go.
        environment = os.environ | changed  # noqa: TID251
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                subprocess_limit.__name__,
                str(limit_s),
                self._python,
                *arguments,
            ],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return ended.returncode, ended.stdout + ended.stderr
