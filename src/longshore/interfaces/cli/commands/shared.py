"""Options and arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Id = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="ID or unique prefix of a job or task.",
        show_default=False,
    ),
]
TaskId = Annotated[
    str, typer.Argument(metavar="ID", help="Task ID or unique prefix.", show_default=False)
]
RequestId = Annotated[
    str | None,
    typer.Option(
        "--request-id",
        metavar="TEXT",
        help="Idempotency key. Repeating the command with the same key has no further effect.",
        show_default=False,
    ),
]
Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Maximum number of results.")
]
Cursor = Annotated[
    str | None,
    typer.Option(
        "--cursor", metavar="TEXT", help="Continue where the previous page ended.", show_default=False
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Continue until it has ended.", show_default=False)
]
Attempt = Annotated[
    int | None,
    typer.Option("--attempt", metavar="N", min=1, help="Only this attempt.", show_default=False),
]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.", show_default=False)
]
JobFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="YAML or JSON; - is stdin.", show_default=False)
]
Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        metavar="NAME",
        help="A queue to serve; may be repeated. [default: the setting worker.queues]",
        show_default=False,
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
        show_default=False,
    ),
]
App = Annotated[
    list[str] | None,
    typer.Option(
        "--app",
        metavar="MODULE",
        help="A module with tasks; may be repeated. [default: the setting worker.app]",
        show_default=False,
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
        show_default=False,
    ),
]
RecycleAt = Annotated[
    str | None,
    typer.Option(
        "--recycle-at",
        metavar="HH:MM",
        help="When to replace them, each day. [default: the setting supervisor.recycle_at]",
        show_default=False,
    ),
]
LogFile = Annotated[
    Path | None,
    typer.Option(
        "--log-file",
        metavar="FILE",
        help="Log there and not to stderr. [default: the setting log_file]",
        show_default=False,
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        metavar="NAME",
        help="How records look: text or json. [default: the setting log_format]",
        show_default=False,
    ),
]
SupervisorFd = Annotated[
    int | None,
    typer.Option(
        "--supervisor-fd",
        metavar="N",
        min=3,
        help="For the supervisor: the descriptor whose end stops this worker.",
        show_default=False,
        hidden=True,
    ),
]
