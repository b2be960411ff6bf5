"""Options and arguments that several commands have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from longshore.interfaces.cli.options import argument, flag, option

Id = Annotated[str, argument("ID", "ID or unique prefix of a job or task.")]
TaskId = Annotated[str, argument("ID", "Task ID or unique prefix.")]
RequestId = Annotated[
    str | None,
    option("TEXT", "Idempotency key: reusing it changes nothing and returns the first result."),
]
Limit = Annotated[int, option("N", "Maximum number of results.", min=1, max=1000)]
Cursor = Annotated[str | None, option("TEXT", "Continue where the previous page ended.")]
Follow = Annotated[bool, flag("Continue until the job or task has ended.", "--follow", "-f")]
Attempt = Annotated[int | None, option("N", "Only this attempt.", min=1, max=1_000_000)]
Yes = Annotated[bool, flag("Do not ask for confirmation.", "--yes", "-y")]
JobFile = Annotated[Path, argument("FILE", "YAML or JSON; - is stdin.")]


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of commands that run a worker."""

    queue: Annotated[
        list[str] | None,
        option("NAME", "A queue to serve; may be repeated. [default: the setting worker.queues]"),
    ] = None
    concurrency: Annotated[
        int | None,
        option(
            "N",
            "How many tasks at once. [default: the setting worker.concurrency]",
            min=1,
            max=1_000,
        ),
    ] = None
    app: Annotated[
        list[str] | None,
        option(
            "MODULE",
            "A module to import once, so that its tasks start faster; may be repeated."
            " [default: the setting worker.app]",
        ),
    ] = None

    def flags(self) -> dict[str, Any]:
        """The settings that the options override."""
        return {
            "worker.queues": tuple(self.queue or ()) or None,
            "worker.concurrency": self.concurrency,
            "worker.app": tuple(self.app or ()) or None,
        }
