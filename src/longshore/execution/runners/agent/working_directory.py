"""An agent's working directory: the task's folder, a repository in it, or a configured folder.

A task's folder outlives a failed attempt, so that the next attempt continues with its files. It is
removed when the work is done, or at the start of a worker when it has been unused for a month.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longshore.core.agents.plan import AgentPlan, Repository
from longshore.core.tasks.failures import ErrorCategory, Failure, FailureRaised
from longshore.execution.runners.agent.git import Git
from longshore.execution.runners.agent.workspace import Workspace
from longshore.execution.runners.channel import Send

_MODE = 0o700
_GIT_TIMEOUT_S = 600.0
_PATCH_TIMEOUT_S = 60.0
_FILES, _RECORD_FILE = "files", "repository.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingDirectory:
    """The folder in which an agent works."""

    folder: Path
    task_folder: Path | None = None  # its parent; None: the folder does not belong to the task
    workspace: Workspace | None = None

    async def save_changes(self, artifacts: Path, send: Send) -> None:
        """Write the changes in the repository to a patch among the artifacts."""
        if self.workspace is None:
            return
        workspace = self.workspace.with_deadline(time.monotonic() + _PATCH_TIMEOUT_S)
        changes = await asyncio.to_thread(workspace.changes, artifacts)
        if changes is not None and not changes.complete:
            omitted = ", ".join(changes.omitted[:3])
            send(
                "log",
                text=f"longshore: changes of some files are too large to be stored: {omitted}",
            )

    def remove(self) -> None:
        """Remove the task's folder."""
        if self.task_folder is not None:
            shutil.rmtree(self.task_folder, ignore_errors=True)


async def open_working_directory(
    spec: Mapping[str, Any], plan: AgentPlan, send: Send
) -> WorkingDirectory:
    """Returns the task's working directory, created if it does not exist."""
    return await asyncio.to_thread(_open, spec, plan, send)


def _open(spec: Mapping[str, Any], plan: AgentPlan, send: Send) -> WorkingDirectory:
    if plan.folder is not None:
        folder = Path(plan.folder)
        if not folder.is_dir():
            message = f"the definition's folder {folder} does not exist on the worker's machine"
            raise FailureRaised(Failure(category=ErrorCategory.NOT_FOUND, message=message))
        return WorkingDirectory(folder=folder)
    task_folder = Path(spec["agent"]["workspace"])
    task_folder.mkdir(mode=_MODE, parents=True, exist_ok=True)
    os.utime(task_folder)  # resets the age by which unused folders are removed
    files = task_folder / _FILES
    if plan.repository is None:
        files.mkdir(mode=_MODE, exist_ok=True)
        return WorkingDirectory(folder=files, task_folder=task_folder)
    workspace = _open_repository(plan.repository, task_folder, spec, send)
    return WorkingDirectory(folder=files, task_folder=task_folder, workspace=workspace)


def _open_repository(
    repository: Repository, task_folder: Path, spec: Mapping[str, Any], send: Send
) -> Workspace:
    git = Git(deadline=time.monotonic() + _GIT_TIMEOUT_S, environment=spec["environment"])
    files, record_file = task_folder / _FILES, task_folder / _RECORD_FILE
    request = {"url": repository.url, "ref": repository.ref}
    if (commit := _recorded_commit(record_file, request)) is not None:
        return Workspace(folder=files, commit=commit, git=git)
    for partial in (files, files.with_name(f"{_FILES}.git")):
        shutil.rmtree(partial, ignore_errors=True)
    workspace = Workspace.open(
        Path(spec["agent"]["repositories"]),
        repository.url,
        repository.ref,
        files,
        git=git,
        allow_local=spec["agent"]["localRepositories"],
        on_progress=lambda text: send("log", text=f"longshore: {text}"),
    )
    # Last: without this file the workspace counts as incomplete.
    record_file.write_text(json.dumps({**request, "commit": workspace.commit}))
    return workspace


def _recorded_commit(record_file: Path, request: Mapping[str, Any]) -> str | None:
    """Returns the commit that an earlier attempt checked out, if it was for the same request."""
    try:
        record = json.loads(record_file.read_text())
    except (OSError, ValueError):
        return None
    return (
        str(record.pop("commit")) if {**request, "commit": record.get("commit")} == record else None
    )
