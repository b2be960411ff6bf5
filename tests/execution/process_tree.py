"""The processes below a fork server: its reapers, and what is below them."""

from pathlib import Path

from longshore.execution.host.launcher import ProcessRunner
from longshore.execution.process_table import descendants


def reapers_of(runner: ProcessRunner) -> list[int]:
    """All of them, at work or not."""
    return sorted(item for item in _below(runner) if _process_name(item) == "longshore-reap")


def all_idle(runner: ProcessRunner) -> bool:
    """Whether nothing of any attempt is left: only reapers are below the fork server."""
    return all(_process_name(item) == "longshore-reap" for item in _below(runner))


def _below(runner: ProcessRunner) -> list[int]:
    fork_server = runner.forkserver.process_id
    assert fork_server is not None
    return list(descendants(fork_server))


def _process_name(process_id: int) -> str | None:
    try:
        return Path(f"/proc/{process_id}/comm").read_text().rstrip("\n")
    except OSError:
        return None  # it has just ended
