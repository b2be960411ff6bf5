"""A trial of a fault: a copy of the sources, the fault in it, and the test that must fail.

The fork server and its children start with a clean environment, so a variable cannot name the copy:
each copy has a virtual environment in which it is installed.
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
"""Exit codes of pytest: every test passed; a test failed. There are others."""


class TrialResult(StrEnum):
    """The result of a trial."""

    KILLED = "killed"
    SURVIVED = "survived"
    BROKEN = "broken"  # the test could not be run: nothing was shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a trial ended."""

    fault: Fault
    result: TrialResult
    seconds: float
    output: str

    @property
    def reason(self) -> str:
        """The first line of pytest that describes the failure."""
        lines = self.output.splitlines()
        return next((line[1:].strip() for line in lines if line.startswith("E ")), "")


@contextmanager
def copied_sources() -> Iterator["Copy"]:
    """A temporary copy of the current sources."""
    with tempfile.TemporaryDirectory(prefix="longshore-mutants-") as folder:
        source = Path(folder).resolve() / "src"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
        yield Copy(source, _interpreter_with(source))


def _interpreter_with(source: Path) -> Path:
    """Create a virtual environment with ``source`` and all packages that are installed here."""
    folder = source.with_name("venv")
    venv.create(folder, symlinks=True)
    paths = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    # In this order; the checkout is there for `verification`. The editable install of the checkout
    # has no effect: its file is read only in the folder of its own environment.
    lines = f"{source}\n{sysconfig.get_path('purelib')}\n{ROOT}\n"
    (packages / "longshore.pth").write_text(lines)
    programs = Path(sysconfig.get_path("scripts", "venv", vars=paths))
    python = programs / "python"
    program = programs / "longshore"
    program.write_text(
        f"#!{python}\nimport sys\n"
        "from longshore.interfaces.cli.main import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    return python


class Copy:
    """A copy of the sources for one fault at a time, and an interpreter that imports it."""

    def __init__(self, source: Path, python: Path) -> None:
        self._source = source
        self._python = str(python)

    def try_out(self, fault: Fault) -> Outcome:
        """Plant the fault, run its test, and remove the fault."""
        started = monotonic()
        with self._planted(fault):
            code, output = self._run_tests([fault.caught_by])
        results = {_PASSED: TrialResult.SURVIVED, _FAILED: TrialResult.KILLED}
        return Outcome(
            fault=fault,
            result=results.get(code, TrialResult.BROKEN),
            seconds=monotonic() - started,
            output=output,
        )

    def problem_without_faults(self, tests: list[str]) -> str | None:
        """Returns why trials would prove nothing, or None.

        The tests must import this copy, and pass without a fault.
        """
        imported = self._run("-c", "import longshore; print(longshore.__file__)")[1].strip()
        if not Path(imported).is_relative_to(self._source):
            return f"the tests would import {imported}, not the copy in {self._source}"
        code, output = self._run_tests(tests, limit_s=_GREEN_LIMIT_S)
        return None if code == _PASSED else f"the tests fail without a fault:\n{output}"

    @contextmanager
    def _planted(self, fault: Fault) -> Iterator[None]:
        path = fault.change.file(self._source / "longshore")
        original = path.read_text()
        self._write(path, fault.change.applied(original, fault=fault.name))
        try:
            yield
        finally:
            self._write(path, original)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        # A compiled file of the other text could pass as up to date.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()

    def _run_tests(self, tests: list[str], limit_s: int = _LIMIT_S) -> tuple[int, str]:
        nodes = [f"tests/{test}" for test in tests]
        options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={_TEST_LIMIT_S}"]
        options.append("--hypothesis-profile=planted")
        return self._run("-m", "pytest", *options, *nodes, limit_s=limit_s)

    def _run(self, *arguments: str, limit_s: int = _LIMIT_S) -> tuple[int, str]:
        # No path precedes the installed packages; compiled files are reused by the next trial.
        changed = {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": ""}
        # The rest is inherited, such as PATH and TMPDIR.
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
