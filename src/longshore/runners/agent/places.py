"""The files that an agent works on: a folder of its task, a repository in it, or one that is named.

A task's own folder outlives an attempt that failed, so that the next one finds what was done. It
is removed when the work is done, and by a worker that starts a month after anybody was there.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longshore.core.agents.plan import AgentPlan, Repository
from longshore.core.failures import ErrorCategory, Failed, Failure
from longshore.runners.agent.git import Git
from longshore.runners.agent.workspace import Rules, Workspace

_MODE = 0o700
_GIT_WITHIN_S = 600.0
_PATCH_WITHIN_S = 60.0
_FILES, _NOTE = "files", "repository.json"

Say = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the work is done."""

    folder: Path
    own: Path | None = None  # the task's folder around it; None: it belongs to somebody else
    workspace: Workspace | None = None

    async def settle(self, artifacts: Path, say: Say) -> None:
        """Keep what was changed in a repository, as a patch."""
        if self.workspace is None:
            return
        workspace = self.workspace.until(time.monotonic() + _PATCH_WITHIN_S)
        changes = await asyncio.to_thread(workspace.changes, artifacts)
        if changes is not None and not changes.whole:
            left = ", ".join(changes.left_out[:3])
            say("log", text=f"longshore: changes of some files are too large to be kept: {left}")

    def remove(self) -> None:
        """It is not needed any more."""
        if self.own is not None:
            shutil.rmtree(self.own, ignore_errors=True)


async def place_of(order: Mapping[str, Any], plan: AgentPlan, say: Say) -> Place:
    """The place where this task's work is done, made if it is not there."""
    return await asyncio.to_thread(_place_of, order, plan, say)


def _place_of(order: Mapping[str, Any], plan: AgentPlan, say: Say) -> Place:
    if plan.folder is not None:
        folder = Path(plan.folder)
        if not folder.is_dir():
            message = f"the definition's folder {folder} is not there on the worker's machine"
            raise Failed(Failure(category=ErrorCategory.NOT_FOUND, message=message))
        return Place(folder=folder)
    own = Path(order["agent"]["workspace"])
    own.mkdir(mode=_MODE, parents=True, exist_ok=True)
    os.utime(own)  # somebody has come back to it
    files = own / _FILES
    if plan.repository is None:
        files.mkdir(mode=_MODE, exist_ok=True)
        return Place(folder=files, own=own)
    workspace = _opened(plan.repository, own, order, say)
    return Place(folder=files, own=own, workspace=workspace)


def _opened(repository: Repository, own: Path, order: Mapping[str, Any], say: Say) -> Workspace:
    git = Git(deadline=time.monotonic() + _GIT_WITHIN_S, environment=order["environment"])
    files, note = own / _FILES, own / _NOTE
    wanted = {"url": repository.url, "ref": repository.ref}
    if (commit := _known(note, wanted)) is not None:
        return Workspace(folder=files, commit=commit, git=git)
    for half in (files, files.with_name(f"{_FILES}.git")):
        shutil.rmtree(half, ignore_errors=True)
    made = Workspace.open(
        Path(order["agent"]["repositories"]),
        repository.url,
        repository.ref,
        files,
        git=git,
        rules=Rules(local=order["agent"]["localRepositories"]),
        tell=lambda text: say("log", text=f"longshore: {text}"),
    )
    # Last: without it, what is there counts as half made.
    note.write_text(json.dumps({**wanted, "commit": made.commit}))
    return made


def _known(note: Path, wanted: Mapping[str, Any]) -> str | None:
    """The commit that an earlier attempt put there."""
    try:
        kept = json.loads(note.read_text())
    except (OSError, ValueError):
        return None
    return str(kept.pop("commit")) if {**wanted, "commit": kept.get("commit")} == kept else None
