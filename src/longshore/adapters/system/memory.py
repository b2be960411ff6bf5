"""How much memory there is: the machine's, or what its container may have of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def machine_memory(
    cgroup_root: Path = _CGROUP_ROOT, own_cgroups: Path = _OWN_CGROUPS
) -> int | None:
    """Bytes; None where the system does not tell."""
    return min((*_physical(), *_cgroup_limits(cgroup_root, own_cgroups)), default=None)


def _physical() -> Iterator[int]:
    with contextlib.suppress(ValueError, OSError):
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_limits(groups: Path, own_groups: Path) -> Iterator[int]:
    """Of this process's control group and of all above it, of either kind of groups."""
    with contextlib.suppress(OSError):
        for line in own_groups.read_text().splitlines():
            number, kinds, path = line.split(":", 2)
            if number == "0":
                place, file = groups, "memory.max"
            elif "memory" in kinds.split(","):
                place, file = groups / "memory", "memory.limit_in_bytes"
            else:
                continue
            group = PurePosixPath(path.lstrip("/"))
            # A container sees its own group as the topmost, whatever it is called outside.
            for one in (group, *group.parents):
                # "max" is no limit, and no number.
                with contextlib.suppress(ValueError, OSError):
                    yield int((place / one / file).read_text())
