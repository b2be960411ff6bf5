"""The workload: its jobs, and their expected results wherever a process is killed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.adapters.sqlite.database import SqliteOptions
from longshore.core.definitions.definition import Definition, Isolation, RunnerKind
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.tasks.states import JobState, TaskState
from longshore.settings import Settings, load_settings
from longshore.wiring.services import Intervals
from verification.crash import tasks

TENANT = "default"
QUEUE = "default"
DEAF, BROKEN, SLOW, QUICK, DELAYED, STEPWISE = (
    *("deaf", "broken", "slow", "quick", "delayed", "stepwise"),
)
"""Jobs of one task, which has the name of its job."""
# More than the crashes of a run use up: every task must complete.
_ATTEMPTS = 50
_DELAY_S = 0.15
_SETTINGS: Mapping[str, Any] = {
    "worker.concurrency": 8,
    "worker.app": ("verification.crash.tasks",),
    "worker.renew_every": "150ms",
    "worker.extend_by": "600ms",
    "worker.kill_grace": "100ms",
    "worker.skew_margin": "20ms",
    "worker.drain_grace": "20ms",
    "worker.poll_wait": "5s",
    "retry.base": "1ms",
    "retry.cap": "5ms",
}
INTERVALS = Intervals(sweep=timedelta(milliseconds=40), output_flush=timedelta(milliseconds=5))
SQLITE = SqliteOptions(slow_poll=timedelta(milliseconds=50))


def settings_for(folder: Path) -> Settings:
    """Settings with short waits."""
    flags = {**_SETTINGS, "data_dir": str(data_folder(folder))}
    return load_settings(flags, environ={}, cwd=folder)


def data_folder(folder: Path) -> Path:
    """The data folder of a run."""
    return folder / "data"


def notes_folder(folder: Path) -> Path:
    """The folder of the notes that tasks and client write."""
    return folder / "notes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedJob:
    """A job and its expected result."""

    request_id: str
    document: dict[str, Any]
    state: JobState = JobState.COMPLETED
    results: Mapping[str, Any] = field(default_factory=dict)  # by task

    @property
    def job_id(self) -> str:
        """The job id, which follows from the request id."""
        return job_id_of(TENANT, self.request_id)

    @property
    def task_state(self) -> TaskState:
        """The expected final state of each task."""
        return TaskState(self.state.value)

    def task_ids(self) -> list[str]:
        return [task_id_of(self.job_id, task["taskId"]) for task in self.document["tasks"]]


def quick_definition(notes: Path) -> Definition:
    """A definition that is stored, not built in."""
    options = {"function": f"{tasks.__name__}:quick", "kwargs": {"notes": str(notes / QUICK)}}
    return Definition(name="crash-quick", runner=RunnerKind.PYTHON, options=options)


SPAWNED = Definition(
    name="crash-spawn",
    runner=RunnerKind.PYTHON,
    overridable=("function",),
    isolation=Isolation.SPAWN,
)
"""Its attempts get a process of their own; those of the other tasks run in child slots."""


REMOVED = ExpectedJob(
    request_id="removed",
    document={
        "tasks": [
            {
                "taskId": "removed",
                "name": "command",
                "input": {"argv": ["/bin/true"]},
                "maxAttempts": _ATTEMPTS,
            }
        ]
    },
)
"""A job that the client removes after its end."""


def jobs(notes: Path) -> list[ExpectedJob]:

    def task(key: str, function: str | None = None, **fields: Any) -> dict[str, Any]:
        arguments = {"notes": str(notes / key), **fields.pop("kwargs", {})}
        called = {"function": f"{tasks.__name__}:{function or key}", "kwargs": arguments}
        document = {"taskId": key, "name": "python", "input": called, "maxAttempts": _ATTEMPTS}
        return {**document, **fields}

    text = "L" * tasks.LARGE_BYTES
    last = task("last", "add", dependsOn=["left", "right"])
    return [
        ExpectedJob(
            request_id=QUICK,
            document={
                "tasks": [
                    {"taskId": QUICK, "name": "crash-quick", "maxAttempts": _ATTEMPTS},
                ]
            },
            results={QUICK: tasks.QUICK},
        ),
        ExpectedJob(
            request_id="graph",
            document={
                "tasks": [
                    task("first", "quick"),
                    task("left", "add", dependsOn=["first"]),
                    task("right", "add", dependsOn=["first"]),
                    last,
                ]
            },
            results={"last": 2 * tasks.QUICK},
        ),
        ExpectedJob(
            request_id="stumble",
            document={"tasks": [task("stumble")]},
            results={"stumble": "up again"},
        ),
        ExpectedJob(
            request_id=BROKEN,
            document={"tasks": [task(BROKEN, maxAttempts=1)]},
            results={BROKEN: "repaired"},
        ),
        ExpectedJob(
            request_id=DEAF,
            document={"tasks": [task(DEAF, name=SPAWNED.name)]},
            state=JobState.CANCELLED,
        ),
        ExpectedJob(
            request_id=DELAYED,
            document={"tasks": [task(DELAYED, "quick", delay=_DELAY_S)]},
            results={DELAYED: tasks.QUICK},
        ),
        ExpectedJob(
            request_id="large",
            document={
                "tasks": [
                    task("large", kwargs={"text": text}),
                    task("measure", dependsOn=["large"]),
                ]
            },
            results={"large": text.swapcase(), "measure": tasks.LARGE_BYTES},
        ),
        ExpectedJob(
            request_id=STEPWISE,
            document={"tasks": [task(STEPWISE, name=SPAWNED.name)]},
            results={STEPWISE: tasks.STEPS},
        ),
        ExpectedJob(
            request_id="command",
            document={
                "tasks": [
                    {
                        "taskId": "command",
                        "name": "command",
                        "input": {"argv": ["/bin/echo", "hello"]},
                        "maxAttempts": _ATTEMPTS,
                    }
                ]
            },
            results={"command": {"exitCode": 0}},
        ),
        ExpectedJob(request_id=SLOW, document={"tasks": [task(SLOW)]}, results={SLOW: "at last"}),
    ]
