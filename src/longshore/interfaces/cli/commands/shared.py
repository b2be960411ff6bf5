"""Options and arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Id = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="A job or task: its id, or as much of it as is enough.",
        show_default=False,
    ),
]
Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=1000, help="How many at most.")
]
Cursor = Annotated[
    str | None,
    typer.Option(
        "--cursor", metavar="TEXT", help="Go on where an earlier list ended.", show_default=False
    ),
]
JobFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="YAML or JSON; - is stdin.", show_default=False)
]
RequestId = Annotated[
    str | None,
    typer.Option(
        "--request-id",
        metavar="TEXT",
        help="Idempotency key: the same ID returns the existing job.",
        show_default=False,
    ),
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
