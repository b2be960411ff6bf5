"""Trying a fault: a copy of the sources, the fault in it, and the test that must go red."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import monotonic

from tests.mutants.fault import ROOT, SOURCE, Fault

_LIMIT_S = 180
_TEST_LIMIT_S = 60
_PASSED, _FAILED = 0, 1
"""How pytest ends when every test passed, and when one failed; it has other ways to end."""


class Verdict(StrEnum):
    """What became of a fault."""

    KILLED = "killed"
    SURVIVED = "survived"
    BROKEN = "broken"  # the test could not be run: nothing was shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a trial ended."""

    fault: Fault
    verdict: Verdict
    seconds: float
    output: str

    @property
    def reason(self) -> str:
        """The first line in which pytest says what went wrong."""
        lines = self.output.splitlines()
        return next((line[1:].strip() for line in lines if line.startswith("E ")), "")


@contextmanager
def copy_of_the_sources() -> Iterator["Copy"]:
    """A copy of its own, as the sources are now; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="longshore-mutants-") as folder:
        source = Path(folder).resolve() / "src"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
        yield Copy(source)


class Copy:
    """Sources into which one fault at a time is planted."""

    def __init__(self, source: Path) -> None:
        self._source = source

    def try_out(self, fault: Fault) -> Outcome:
        """Plant the fault, run its test, and take the fault out again."""
        started = monotonic()
        with self._planted(fault):
            code, output = self._run_tests([fault.caught_by])
        verdicts = {_PASSED: Verdict.SURVIVED, _FAILED: Verdict.KILLED}
        return Outcome(
            fault=fault,
            verdict=verdicts.get(code, Verdict.BROKEN),
            seconds=monotonic() - started,
            output=output,
        )

    def problem_without_faults(self, tests: list[str]) -> str | None:
        """Why trials would prove nothing, if so: the tests must be green as long as there is no
        fault, and it must be this copy that they import."""
        command = [sys.executable, "-c", "import longshore; print(longshore.__file__)"]
        imported = self._run(command)[1].strip()
        if not Path(imported).is_relative_to(self._source):
            return f"the tests would import {imported}, not the copy in {self._source}"
        code, output = self._run_tests(tests)
        return None if code == _PASSED else f"the tests are not green without any fault:\n{output}"

    @contextmanager
    def _planted(self, fault: Fault) -> Iterator[None]:
        path = self._source / "longshore" / fault.file
        whole = path.read_text()
        self._write(path, fault.planted(whole))
        try:
            yield
        finally:
            self._write(path, whole)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        # What was compiled from the other text may look as if it fitted this one.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()

    def _run_tests(self, tests: list[str]) -> tuple[int, str]:
        nodes = [f"tests/{test}" for test in tests]
        options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={_TEST_LIMIT_S}"]
        return self._run([sys.executable, "-m", "pytest", *options, *nodes])

    def _run(self, command: list[str]) -> tuple[int, str]:
        # The path goes before what is installed, in the children of a test too. Compiled files are
        # kept from one trial to the next.
        changed = {"PYTHONPATH": str(self._source), "PYTHONDONTWRITEBYTECODE": ""}
        # The rest must be as it is: where the shell finds things, where temporary files go.
        environment = os.environ | changed  # noqa: TID251
        try:
            ended = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return -1, f"no end after {_LIMIT_S} s"
        return ended.returncode, ended.stdout + ended.stderr
