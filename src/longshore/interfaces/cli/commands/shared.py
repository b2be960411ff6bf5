"""Options and arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Id = Annotated[
    str,
    typer.Argument(metavar="ID", help="ID or unique prefix of a job or task."),
]
TaskId = Annotated[str, typer.Argument(metavar="ID", help="Task ID or unique prefix.")]
RequestId = Annotated[
    str | None,
    typer.Option(
        "--request-id",
        metavar="TEXT",
        help="Idempotency key. Repeating the command with the same key has no further effect.",
    ),
]
Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Maximum number of results.")
]
Cursor = Annotated[
    str | None,
    typer.Option("--cursor", metavar="TEXT", help="Continue where the previous page ended."),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Continue until it has ended.")]
Attempt = Annotated[
    int | None,
    typer.Option("--attempt", metavar="N", min=1, help="Only this attempt."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
JobFile = Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON; - is stdin.")]
Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        metavar="NAME",
        help="A queue to serve; may be repeated. [default: the setting worker.queues]",
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        metavar="N",
        min=1,
        max=1_000,
        help="How many tasks at once. [default: the setting worker.concurrency]",
    ),
]
App = Annotated[
    list[str] | None,
    typer.Option(
        "--app",
        metavar="MODULE",
        help="A module with tasks; may be repeated. [default: the setting worker.app]",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        min=1,
        help="How many worker processes to keep running."
        " [default: the setting supervisor.processes]",
    ),
]
RecycleAt = Annotated[
    str | None,
    typer.Option(
        "--recycle-at",
        metavar="HH:MM",
        help="When to replace them, each day. [default: the setting supervisor.recycle_at]",
    ),
]
LogFile = Annotated[
    Path | None,
    typer.Option(
        "--log-file",
        metavar="FILE",
        help="Log there and not to stderr. [default: the setting log_file]",
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        metavar="NAME",
        help="How records look: text or json. [default: the setting log_format]",
    ),
]
SupervisorFd = Annotated[
    int | None,
    typer.Option(
        "--supervisor-fd",
        metavar="N",
        min=3,
        help="For the supervisor: the descriptor whose end stops this worker.",
        hidden=True,
    ),
]
