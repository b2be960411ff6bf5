"""How many functions of the package a ``longshore submit`` goes through until its commit.

``python -m benchmarks.call_path`` counts the distinct functions that are entered between ``main()``
and the commit of the job, on all threads, and beside them lambdas and comprehensions; ``--list``
names them by module.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import longshore
from longshore.adapters.shared import failpoints
from longshore.interfaces.cli.main import main as longshore_main

_PACKAGE = str(Path(longshore.__file__).parent)
_JOB = """\
tasks:
  - taskId: hello
    name: command
    input: {argv: [echo, hello]}
"""


def functions_of_a_submit() -> set[CodeType]:
    """The code objects of the package that one submit enters before its commit."""
    entered: set[CodeType] = set()
    committed = threading.Event()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and not committed.is_set():
            entered.add(frame.f_code)

    def reached(point: str) -> None:
        if point == "write.committed":
            committed.set()

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.yaml"
        file.write_text(_JOB)
        # The first submit makes the data folder and imports what is needed.
        _run(["submit", str(file), "--data-dir", f"{folder}/data"])
        failpoints.arm(reached)
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            _run(["submit", str(file), "--data-dir", f"{folder}/data"])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            failpoints.arm(lambda _: None)
    if not committed.is_set():
        message = "the submit did not commit"
        raise RuntimeError(message)
    return {code for code in entered if code.co_filename.startswith(_PACKAGE)}


def _run(arguments: list[str]) -> None:
    code = longshore_main(arguments)
    if code:
        message = f"longshore {' '.join(arguments)} ended with {code}"
        raise RuntimeError(message)


def main() -> None:
    """Print the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the functions by module")
    options = parser.parse_args()
    entered = functions_of_a_submit()
    named = {code for code in entered if not code.co_name.startswith("<")}
    by_module = Counter(code.co_filename.removeprefix(_PACKAGE) for code in named)
    for module in sorted(by_module) if options.list else ():
        names = sorted(code.co_qualname for code in named if code.co_filename.endswith(module))
        print(f"{by_module[module]:4} {module}: {', '.join(names)}")
    print(
        f"{len(named)} distinct functions in {len(by_module)} modules, "
        f"and {len(entered) - len(named)} lambdas and comprehensions"
    )


if __name__ == "__main__":
    main()
