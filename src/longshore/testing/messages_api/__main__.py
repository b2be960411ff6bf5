"""``python -m longshore.testing.messages_api``: the stand-in as a process of its own.

It writes its port into a file when it listens, and runs until it is told to end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from longshore.testing.messages_api.control import CONTROL
from longshore.testing.messages_api.reading import BadScript, read_scripts
from longshore.testing.messages_api.script import Script
from longshore.testing.messages_api.server import MessagesApi


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM or SIGINT; 2 if the script cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m longshore.testing.messages_api",
        description="A stand-in of the Messages API, on this machine only.",
    )
    parser.add_argument("--port", type=int, default=0, help="0: any free one (the default)")
    parser.add_argument("--port-file", type=Path, help="written when it listens")
    parser.add_argument("--script", type=Path, help="a script as JSON; others can be put later")
    given = parser.parse_args(arguments)
    try:
        scripts = _read(given.script) if given.script else ()
    except (OSError, BadScript, ValueError) as error:
        sys.stderr.write(f"{given.script}: {error}\n")
        return 2
    asyncio.run(_serve(scripts, port=given.port, port_file=given.port_file))
    return 0


def _read(path: Path) -> tuple[Script, ...]:
    return read_scripts(json.loads(path.read_text(encoding="utf-8")))


async def _serve(scripts: tuple[Script, ...], *, port: int, port_file: Path | None) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with MessagesApi(scripts, port=port) as api:
        if port_file is not None:
            # Whole or not there at all: somebody is waiting for it.
            draft = port_file.with_name(f"{port_file.name}.draft")
            draft.write_text(f"{api.port}\n", encoding="utf-8")
            draft.replace(port_file)
        sys.stdout.write(
            f"ANTHROPIC_BASE_URL={api.url}\nscripts and requests: {api.url}{CONTROL}\n"
        )
        sys.stdout.flush()
        await ended.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
