"""The processes below a fork server: its reapers, and what is below them."""

from pathlib import Path

from longshore.execution.host.launcher import ProcessRunner
from longshore.execution.host.slots import ProcessSlots
from longshore.execution.process_table import descendants
from tests.execution.conftest import wait_until


async def reaper_of_slot(slots: ProcessSlots, slot: int) -> int:
    """The reaper of a slot, when it has forked the slot's child."""
    await wait_until(lambda: slots.process_id(slot))
    reaper = _parent(slots.process_id(slot))
    assert reaper is not None
    return reaper


def reapers_of(runner: ProcessRunner) -> list[int]:
    """All of them, at work or not."""
    return sorted(item for item in _below(runner) if _parent(item) == runner.forkserver.process_id)


def idle_child(runner: ProcessRunner) -> int | None:
    """The only child that waits for an attempt, if there is one."""
    idle = [item for item in _below(runner) if _process_name(item) == "longshore-idle"]
    return idle[0] if len(idle) == 1 else None


def all_idle(runner: ProcessRunner) -> bool:
    """Whether nothing of any attempt is left: only reapers, and children that wait for one."""
    names = {"longshore-reap", "longshore-idle"}
    return all(_process_name(item) in names for item in _below(runner))


def _below(runner: ProcessRunner) -> list[int]:
    fork_server = runner.forkserver.process_id
    assert fork_server is not None
    return list(descendants(fork_server))


def _parent(process_id: int) -> int | None:
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None  # it has just ended
    return int(fields[1])


def _process_name(process_id: int) -> str | None:
    try:
        return Path(f"/proc/{process_id}/comm").read_text().rstrip("\n")
    except OSError:
        return None  # it has just ended
