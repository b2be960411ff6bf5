"""Settings as they come from what a test gives, and not from the machine it runs on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longshore.settings import LoadedSettings, SettingRow, describe, load


def load_settings_for_test(
    folder: Path, *, flags: Mapping[str, Any] | None = None, file: str = "", **environ: str
) -> LoadedSettings:
    if file:
        (folder / "longshore.toml").write_text(file)
    return load(flags or {}, environ=environ, cwd=folder)


def row(rows: LoadedSettings, name: str) -> SettingRow:
    return next(row for row in describe(rows) if row.name == name)
