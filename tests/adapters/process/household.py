"""Who lives below a keeper: its guards, and below each that rests a leader that waits."""

from pathlib import Path

from longshore.adapters.process.runner import ProcessRunner
from longshore.runners.keeper.kernel import descendants
from longshore.runners.keeper.leader import SPARE


def guards_of(runner: ProcessRunner) -> list[int]:
    """All of them, at work or not."""
    keeper = runner.keeper.process_id
    assert keeper is not None
    return sorted(one for one in descendants(keeper) if _parent_of(one) == keeper)


def resting(guard: int) -> bool:
    """Whether there is nobody below a guard but one that waits for the next attempt."""
    return [_name_of(one) for one in descendants(guard)] == [SPARE.decode()]


def at_rest(runner: ProcessRunner) -> bool:
    """Whether nothing of any attempt is left."""
    return all(resting(guard) for guard in guards_of(runner))


def _parent_of(process_id: int) -> int | None:
    try:
        return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return None  # it has just ended


def _name_of(process_id: int) -> str | None:
    try:
        return Path(f"/proc/{process_id}/comm").read_text().rstrip("\n")
    except OSError:
        return None
