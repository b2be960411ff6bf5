"""``python -m verification.messages_api``: the stand-in as a process of its own.

It writes its port into a file when it listens, and runs until it receives a signal, or until the
process that started it has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from verification.messages_api.control import CONTROL
from verification.messages_api.script import Script
from verification.messages_api.script_json import BadScript, read_scripts
from verification.messages_api.server import MessagesApi

_POLL_INTERVAL_S = 0.5


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM or SIGINT; 2 if the script cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m verification.messages_api",
        description="A stand-in of the Messages API, on this machine only.",
    )
    parser.add_argument("--port", type=int, default=0, help="0: any free one (the default)")
    parser.add_argument("--port-file", type=Path, help="written when it listens")
    parser.add_argument(
        "--script",
        type=Path,
        action="append",
        default=[],
        help="a script as JSON; may be repeated, and others can be put later",
    )
    parser.add_argument(
        "--with-parent", action="store_true", help="end with who started it, and not by Ctrl-C"
    )
    fields = parser.parse_args(arguments)
    parent = os.getppid() if fields.with_parent else None
    scripts: list[Script] = []
    for path in fields.script:
        try:
            scripts += read_scripts(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, BadScript, ValueError) as error:
            sys.stderr.write(f"{path}: {error}\n")
            return 2
    asyncio.run(_serve(tuple(scripts), fields.port, fields.port_file, parent))
    return 0


async def _serve(
    scripts: tuple[Script, ...], port: int, port_file: Path | None, parent: int | None
) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    # A terminal sends Ctrl-C to both, and the parent may need answers while it ends.
    loop.add_signal_handler(signal.SIGINT, ended.set if parent is None else lambda: None)
    async with MessagesApi(scripts, port=port) as api:
        if port_file is not None:
            # Atomically: a test waits for it.
            draft = port_file.with_name(f"{port_file.name}.draft")
            draft.write_text(f"{api.port}\n", encoding="utf-8")
            draft.replace(port_file)
        sys.stdout.write(
            f"ANTHROPIC_BASE_URL={api.url}\nscripts and requests: {api.url}{CONTROL}\n"
        )
        sys.stdout.flush()
        await (ended.wait() if parent is None else _wait_for_end(parent, ended))


async def _wait_for_end(parent: int, ended: asyncio.Event) -> None:
    """Wait for a signal, or until this process has another parent."""
    while os.getppid() == parent:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _POLL_INTERVAL_S)
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
