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
        help="Idempotency key: a request with the same ID is carried out once.",
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
