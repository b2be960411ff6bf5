"""A CLI that a test can block before it starts or before it prints its result."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import claude_agent_sdk

from tests.acceptance.conftest import wait_until

_REAL = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
# Opening a named pipe without a writer blocks the process.
_SCRIPT = """#!/bin/sh
cd "$(dirname "$0")"
echo start >> starts
number=$(wc -l < starts)
[ -p "start-$number" ] && echo held >> "held-start-$number" && read nothing < "start-$number"
if [ -p "result-$number" ]; then
    cd - > /dev/null
    {real} "$@" | {python} -c '{passing}' "$(dirname "$0")" "$number"
    exit
fi
cd - > /dev/null
exec {real} "$@"
"""
_PASSING = """
import sys
folder, number = sys.argv[1:]
for line in sys.stdin:
    if "\\"type\\":\\"result\\"" in line:
        open(f"{folder}/held-result-{number}", "w").close()
        open(f"{folder}/result-{number}").read()
    print(line, end="", flush=True)
"""


class HeldCli:
    """Its starts are counted from 1, over all attempts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.path = folder / "claude-held"
        script = _SCRIPT.format(real=_REAL, python=sys.executable, passing=_PASSING)
        self.path.write_text(script)
        self.path.chmod(0o700)

    def hold(self, where: str, number: int) -> None:
        """Block the ``start`` with this number, or the CLI before it prints its ``result``."""
        os.mkfifo(self._folder / f"{where}-{number}")

    async def wait_held(self, where: str, number: int) -> None:
        """Return when it has stopped there."""
        await wait_for_file(self._folder / f"held-{where}-{number}")


def detached_command(never: Path) -> str:
    """Returns a command that leaves a process in a session of its own.

    It writes its number into the file ``detached``.
    """
    waits = f"echo $$ > detached.part; mv detached.part detached; read nothing < {never}"
    return f"(setsid sh -c '{waits}' > /dev/null 2>&1 &)"


async def wait_for_file(note: Path) -> None:
    """Wait until the file exists."""

    async def look() -> bool:
        return note.exists()

    await wait_until(look)
