"""The body of ``longshore settings``."""

from __future__ import annotations

from dataclasses import asdict

from rich.text import Text

from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import Column, print_json, print_table
from longshore.settings import DEFAULT, describe, load

_LONGEST = 60


def settings(here: Here) -> None:
    """Print every setting, in the order of the reference."""
    rows = describe(load(here.flags()))
    if here.json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        [Column("SETTING"), Column("VALUE", flexible=True), Column("ORIGIN")],
        [
            [
                row.name,
                row.value if len(row.value) <= _LONGEST else f"{row.value[: _LONGEST - 1]}…",
                Text(row.origin, style="dim" if row.origin == DEFAULT else "bold"),
            ]
            for row in rows
        ],
    )
