"""The body of ``longshore settings``."""

from __future__ import annotations

from dataclasses import asdict

from rich.text import Text

from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render.screen import Column, print_json, print_table
from longshore.settings import DEFAULT, describe, load

_MAX_VALUE_CHARACTERS = 60


def print_settings(options: GlobalOptions) -> None:
    """Print every setting, in the order of the reference."""
    rows = describe(load(options.flags()))
    if options.json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        [Column("SETTING"), Column("VALUE", flexible=True), Column("ORIGIN")],
        [
            [
                row.name,
                row.value
                if len(row.value) <= _MAX_VALUE_CHARACTERS
                else f"{row.value[: _MAX_VALUE_CHARACTERS - 1]}…",
                Text(row.origin, style="dim" if row.origin == DEFAULT else "bold"),
            ]
            for row in rows
        ],
    )
