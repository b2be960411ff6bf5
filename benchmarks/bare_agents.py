"""The floor of an agent's task: the SDK alone, as in a worker that a user writes.

A program of its own. Without ``--once`` it has loaded the SDK, and for each line of input it
forks a child that asks the question: the least that a task costs which has a process of its own.
With ``--once`` it asks by itself: what such a task costs in a process that is started for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

from benchmarks.agent_question import KEY, MODEL, PROMPT


def main(arguments: list[str]) -> None:
    """Ask at the address that is given; seconds and CPU seconds of each task are printed."""
    url = arguments[0]
    if "--once" in arguments:
        _ask_in_folder(url)
        return
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(_in_a_fork(url)) + "\n")
        sys.stdout.flush()


def _in_a_fork(url: str) -> dict[str, float]:
    spent, began = _children_cpu_s(), time.perf_counter()
    process_id = os.fork()
    if process_id == 0:
        code = 1
        try:
            _ask_in_folder(url)
            code = 0
        except Exception:  # noqa: BLE001 - the edge of the process
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(process_id, 0)
    assert status == 0, "the question was not answered"
    return {"seconds": time.perf_counter() - began, "cpu_s": _children_cpu_s() - spent}


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _ask_in_folder(url: str) -> None:
    with tempfile.TemporaryDirectory(prefix="longshore-bench-") as folder:
        asyncio.run(_ask(url, Path(folder)))


async def _ask(url: str, folder: Path) -> None:
    last: Any = None
    async for message in query(prompt=PROMPT, options=_options(url, folder)):
        last = message
    assert isinstance(last, ResultMessage)
    assert not last.is_error, last.result


def _options(url: str, folder: Path) -> ClaudeAgentOptions:
    """What makes the command line do the same as in a task of ours."""
    return ClaudeAgentOptions(
        cwd=folder,
        model=MODEL,
        setting_sources=[],
        strict_mcp_config=True,
        tools=[],
        permission_mode="dontAsk",
        env={
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "CLAUDE_CONFIG_DIR": str(folder / "config"),
            "CLAUDE_CODE_TMPDIR": str(folder),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": KEY,
        },
    )


if __name__ == "__main__":
    main(sys.argv[1:])
