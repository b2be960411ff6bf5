"""Trying a fault: a copy of the sources, the fault in it, and the test that must go red."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
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


def tried(fault: Fault) -> Outcome:
    """Plant the fault in a copy and run its test."""
    started = monotonic()
    with _copy() as source:
        fault.plant(source)
        code, output = _run_tests(source, [fault.caught_by])
    verdicts = {_PASSED: Verdict.SURVIVED, _FAILED: Verdict.KILLED}
    return Outcome(
        fault=fault,
        verdict=verdicts.get(code, Verdict.BROKEN),
        seconds=monotonic() - started,
        output=output,
    )


def check_without_faults(tests: Iterable[str]) -> str | None:
    """Why the trials would prove nothing, if so: the tests must be green on a plain copy of the
    sources, and it must be the copy that they import."""
    with _copy() as source:
        command = [sys.executable, "-c", "import longshore; print(longshore.__file__)"]
        imported = _run(source, command)[1].strip()
        if not Path(imported).is_relative_to(source):
            return f"the tests would import {imported}, not the copy in {source}"
        code, output = _run_tests(source, sorted(set(tests)))
    return None if code == _PASSED else f"the tests are not green without any fault:\n{output}"


@contextmanager
def _copy() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="longshore-mutant-") as folder:
        source = Path(folder).resolve() / "src"
        # Without compiled files, which might be taken for those of a changed source.
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
        yield source


def _run_tests(source: Path, tests: list[str]) -> tuple[int, str]:
    nodes = [f"tests/{test}" for test in tests]
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={_TEST_LIMIT_S}"]
    return _run(source, [sys.executable, "-m", "pytest", *options, *nodes])


def _run(source: Path, command: list[str]) -> tuple[int, str]:
    # The path goes before what is installed, in the children of a test too.
    changed = {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    # The rest must be as it is: where the shell finds things, where temporary files go.
    environment = os.environ | changed  # noqa: TID251
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return -1, f"no end after {_LIMIT_S} s"
    return ended.returncode, ended.stdout + ended.stderr
