"""The processes below a fork server: its reapers, and a preforked child below each idle one."""

from pathlib import Path

from longshore.execution.forkserver.child import PREFORKED_NAME
from longshore.execution.host.launcher import ProcessRunner
from longshore.execution.process_table import descendants


def reapers_of(runner: ProcessRunner) -> list[int]:
    """All of them, at work or not."""
    fork_server = runner.forkserver.process_id
    assert fork_server is not None
    return sorted(item for item in descendants(fork_server) if _parent_of(item) == fork_server)


def is_idle(reaper: int) -> bool:
    """Whether a reaper has no descendant but its preforked child."""
    return [_process_name(item) for item in descendants(reaper)] == [PREFORKED_NAME.decode()]


def all_idle(runner: ProcessRunner) -> bool:
    """Whether nothing of any attempt is left."""
    return all(is_idle(reaper_process) for reaper_process in reapers_of(runner))


def _parent_of(process_id: int) -> int | None:
    try:
        return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return None  # it has just ended


def _process_name(process_id: int) -> str | None:
    try:
        return Path(f"/proc/{process_id}/comm").read_text().rstrip("\n")
    except OSError:
        return None
