"""Starts attempts as children of the fork server, each in its own session and folder."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from longshore.adapters.shared.failpoints import reach
from longshore.core.definitions.definition import Definition, Isolation, RunnerKind
from longshore.core.ids import traceparent_of
from longshore.core.text.known_secrets import KnownSecrets
from longshore.errors import BackendUnavailable, UsageError
from longshore.execution.host.attempt import ProcessAttempt
from longshore.execution.host.folder_cleaner import FolderCleaner
from longshore.execution.host.forkserver_client import ForkedReaper, ForkServerClient
from longshore.execution.host.slots import ProcessSlots
from longshore.execution.host.task_users import TaskUser, TaskUsers
from longshore.execution.protocol import (
    ATTEMPT_VARIABLE,
    CHANNEL_FD,
    CHANNEL_VARIABLE,
    DEPENDENCIES_VARIABLE,
    FEEDBACK_VARIABLE,
    INPUT_VARIABLE,
    PREVIOUS_OUTPUT_VARIABLE,
    TASK_VARIABLE,
    TRACE_VARIABLE,
)
from longshore.execution.slot_page import PAGE_BYTES, SlotPage
from longshore.ports.child_slots import SlotListener
from longshore.ports.clock import Clock
from longshore.ports.runner import AttemptSpec

# What the child gets of an attempt's spec and definition.
_SPEC_FIELDS = (
    *("task_id", "job_id", "attempt", "input", "dependency_outputs", "checkpoints"),
    *("feedback", "previous_output", "revision", "has_budget", "conversations"),
)
_DEFINITION_FIELDS = ("runner", "isolation", "pty", "options", "overridable")
_FOLDER_MODE = 0o700
_INPUT_FILE, _DEPENDENCIES_FILE = "input.json", "dependencies.json"
_FEEDBACK_FILE, _PREVIOUS_OUTPUT_FILE = "feedback.txt", "previous_output.json"
# The workspace of a failed or paused agent task is kept this long, for a resume or a larger budget.
_STALE_AFTER = timedelta(days=30)


@dataclass(eq=False, repr=False)
class ProcessRunner:
    """See ``ports.runner.Runner``.

    Args:
        agent_access: What only agents receive: how to reach their model, and their permissions.
        max_processes: How many processes an attempt may have, unless its definition limits them;
            0: no limit.
        modules: Loaded before any child is started.
        agent_modules: Modules that take a second and much memory to load. Agents have their own
            fork server, which loads them and starts with the first agent.
        preload: Start the agents' fork server in ``open``.
        read_secret: Returns the secret of this name, or raises ``UsageError``.
        users: Those as which tasks run; None: as the user of this process.
        inherited_fds: Returns file descriptors that stay open while any process of an attempt is
            alive.
    """

    folder: Path
    environment: Mapping[str, str]
    clock: Clock
    _: KW_ONLY
    keep_folders: bool = False
    max_processes: int = 0
    agent_access: Mapping[str, Any] = field(default_factory=dict)
    modules: Sequence[str] = ()
    agent_modules: Sequence[str] = ()
    preload: bool = False
    read_secret: Callable[[str], str] = str
    users: TaskUsers | None = None
    inherited_fds: Callable[[], Sequence[int]] = tuple

    def __post_init__(self) -> None:
        self._folder = self.folder / "work"
        if self.users is not None:
            # Tasks of other users can neither read nor pass the data folder.
            self._folder = self.folder.with_name(f"{self.folder.name}-tasks")
        self._cleaner = FolderCleaner(keep=self.keep_folders)
        client = partial(ForkServerClient, self.environment, inherited_fds=self.inherited_fds)
        self.forkserver = self.agent_forkserver = client(modules=self.modules)
        if self.agent_modules:
            self.agent_forkserver = client(modules=self.agent_modules)
        self._free_slots = defaultdict[ForkServerClient, list[ForkedReaper]](list)

    async def open(self) -> None:
        if self.users is not None:
            self.users.open_folder(self._folder)
            await asyncio.to_thread(self.users.check_python, self.environment)
        before = self.clock.now() - _STALE_AFTER
        await self._cleaner.remove_stale(self._folder, "*.agent", before=before)
        await self.forkserver.open()
        if self.preload:
            await self.agent_forkserver.open()

    async def close(self) -> None:
        await self.agent_forkserver.close()
        await self.forkserver.close()
        await self._cleaner.close()

    def make_slots(self, listener: SlotListener, *, page_path: Path) -> ProcessSlots:
        """Child slots below the same fork server; ``page_path`` records what they begin."""
        return ProcessSlots(
            self.forkserver,
            listener,
            self.clock,
            folder=self._folder,
            page_path=page_path,
            cleaner=self._cleaner,
            max_processes=self.max_processes,
        )

    async def start(self, spec: AttemptSpec, *, deadline_ns: int) -> ProcessAttempt:
        forkserver = await self._forkserver_for(spec.definition)
        user = None if self.users is None else self.users.of(spec.tenant)
        folder = self._folder / f"{spec.task_id}.{spec.attempt}"
        free_slots = self._free_slots[forkserver]
        variables = spec.definition.secrets.items()
        secrets = {variable: self.read_secret(name) for variable, name in variables}
        attempt = ProcessAttempt(
            spec,
            on_free=free_slots.append,
            folder=folder,
            cleaner=self._cleaner,
            clock=self.clock,
            max_processes=spec.definition.resources.processes or self.max_processes,
            secrets=KnownSecrets(secrets.values()) if secrets else None,
            user=user,
        )
        try:
            write = partial(self._write_spec, spec, folder, secrets, user)
            document = await asyncio.to_thread(write) if spec.is_long else write()
            reach("attempt.spec_written")
            with ExitStack() as theirs:
                child_ends = attempt.open_pipes(theirs)
                reach("attempt.child_requested")
                # A reaper may have been killed while it was idle.
                while free_slots and not free_slots[-1].is_alive:
                    free_slots.pop()
                slot = free_slots.pop() if free_slots else await _open_slot(forkserver)
                attempt.start_in(slot, document, child_ends, deadline_ns)
            await attempt.begun
        except BaseException as error:
            attempt.abandon()
            self._cleaner.remove_now(folder)
            if isinstance(error, OSError):
                raise BackendUnavailable(f"cannot start a child process: {error}") from error
            raise
        reach("attempt.child_started")
        return attempt

    def _write_spec(
        self, spec: AttemptSpec, folder: Path, secrets: Mapping[str, str], user: TaskUser | None
    ) -> bytes:
        """Create the folder. Returns what the child receives."""
        _prepare_folder(folder, spec, user)
        return json.dumps(self._encode(spec, folder, secrets, user), default=asdict).encode()

    async def _forkserver_for(self, definition: Definition) -> ForkServerClient:
        cold = definition.isolation is Isolation.SPAWN
        if definition.runner is not RunnerKind.AGENT or cold:
            return self.forkserver
        try:
            await self.agent_forkserver.open()
        except UsageError:
            # The modules cannot be loaded: the child will fail to load them too, and report it.
            return self.forkserver
        return self.agent_forkserver

    def _encode(
        self, spec: AttemptSpec, folder: Path, secrets: Mapping[str, str], user: TaskUser | None
    ) -> dict[str, Any]:
        """Returns the spec as the child receives it."""
        definition = spec.definition
        limits = asdict(definition.resources)
        cpu: timedelta | None = limits.pop("cpu")
        document = {
            **{name: getattr(definition, name) for name in _DEFINITION_FIELDS},
            **{name: getattr(spec, name) for name in _SPEC_FIELDS},
            "resources": {**limits, "cpu_s": None if cpu is None else int(cpu.total_seconds())},
            "folder": str(folder),
            "environment": {
                TRACE_VARIABLE: traceparent_of(spec.job_id, spec.task_id, spec.attempt),
                **self.environment,
                **(user.variables(folder) if user is not None else {}),
            },
            "user": user,
            "variables": {
                "PWD": str(folder),
                TASK_VARIABLE: spec.task_id,
                ATTEMPT_VARIABLE: str(spec.attempt),
                CHANNEL_VARIABLE: str(CHANNEL_FD),
            },
        }
        if secrets:
            options = definition.options
            document["options"] = {**options, "env": {**options["env"], **secrets}}
        if definition.runner is RunnerKind.COMMAND:
            document["variables"] |= {
                INPUT_VARIABLE: str(folder / _INPUT_FILE),
                DEPENDENCIES_VARIABLE: str(folder / _DEPENDENCIES_FILE),
            }
            if spec.feedback is not None:
                document["variables"] |= {
                    FEEDBACK_VARIABLE: str(folder / _FEEDBACK_FILE),
                    PREVIOUS_OUTPUT_VARIABLE: str(folder / _PREVIOUS_OUTPUT_FILE),
                }
        if definition.runner is RunnerKind.AGENT:
            # The workspace outlives the attempts of its task.
            workspace = self._folder / f"{spec.task_id}.agent"
            repositories = self.folder / "repositories" / spec.tenant
            if user is not None:
                repositories = self._folder / f"{spec.tenant}.repositories"
                for path in (workspace, repositories):
                    path.mkdir(mode=_FOLDER_MODE, exist_ok=True)
                    user.own(path)
            document["agent"] = {
                **self.agent_access,
                "workspace": str(workspace),
                "repositories": str(repositories),
            }
        return document


async def _open_slot(forkserver: ForkServerClient) -> ForkedReaper:
    """Request the reaper of a slot whose children take one attempt each."""
    with ExitStack() as stack:
        page_file = os.memfd_create("longshore-slot-page")
        stack.callback(os.close, page_file)
        os.posix_fallocate(page_file, 0, PAGE_BYTES)
        return await forkserver.fork_reaper(SlotPage(page_file), None, slot={}, fds=(page_file,))


def _prepare_folder(folder: Path, spec: AttemptSpec, user: TaskUser | None) -> None:
    """Create the attempt's folder and a command's input files, readable only by their owner."""
    folder.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    if user is not None and folder.is_dir():
        shutil.rmtree(folder)  # what a task has left there must not be written to
    folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    reach("attempt.folder_created")
    if spec.definition.runner is RunnerKind.COMMAND:
        _write_private(folder / _INPUT_FILE, json.dumps(spec.input))
        _write_private(folder / _DEPENDENCIES_FILE, json.dumps(dict(spec.dependency_outputs)))
        if spec.feedback is not None:
            _write_private(folder / _FEEDBACK_FILE, spec.feedback)
            _write_private(folder / _PREVIOUS_OUTPUT_FILE, json.dumps(spec.previous_output))
    if user is not None:
        for path in (*folder.iterdir(), folder):
            user.own(path)


def _write_private(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(text.encode(errors="replace"))
