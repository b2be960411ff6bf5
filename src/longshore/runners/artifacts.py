"""Keeping files: copies of them in the attempt's folder, whole or not at all.

A copy gets its name when it is complete, so an attempt that is killed in the middle leaves no half
of a file that looks like one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field

from longshore.core.blob_keys import safe_name

_FOLDER_MODE = 0o700
_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of a wish to keep something."""

    name: str
    left_out: list[str] = field(default_factory=list)


def keep(path: str, artifacts: str, name: str | None = None) -> Kept:
    """Copy a file, or each file of a folder, to ``name`` below the folder ``artifacts``.

    In a folder, links that lead out of it and what is no file (pipes, sockets) are left out.

    Raises:
        FileNotFoundError: there is nothing at ``path``.
        ValueError: it is neither a file nor a folder.
    """
    source = os.path.realpath(path, strict=True)
    there = os.path.realpath(artifacts)
    if name is None and (source == there or _inside(source, there)):
        return Kept(os.path.relpath(source, there))
    called = safe_name(os.path.basename(os.path.abspath(path)) if name is None else str(name))
    target = os.path.join(there, called)
    if os.path.isdir(source):
        left_out: list[str] = []
        # A list, because the copies may land in the folder that is being read.
        for found in list(_files_below(source, left_out)):
            _copy(os.path.join(source, found), os.path.join(target, found), there)
        return Kept(called, left_out)
    if not os.path.isfile(source):
        message = f"{path} is neither a file nor a folder"
        raise ValueError(message)
    _copy(source, target, there)
    return Kept(called)


def _files_below(folder: str, left_out: list[str]) -> Iterator[str]:
    """Files by their paths below the folder, those behind links that stay inside it too."""
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in sorted(names + links):
            full = os.path.join(place, name)
            real = os.path.realpath(full)
            below = os.path.relpath(full, folder)
            if _inside(real, folder) and os.path.isfile(real):
                yield below
            else:
                left_out.append(below)


def _inside(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))


def _copy(source: str, target: str, artifacts: str) -> None:
    os.makedirs(os.path.dirname(target), mode=_FOLDER_MODE, exist_ok=True)
    with open(source, "rb") as reading:
        # Beside the artifacts: on the same disk, and not one of them.
        beside = os.path.dirname(artifacts)
        with tempfile.NamedTemporaryFile(dir=beside, prefix=".copying-", delete=False) as draft:
            try:
                shutil.copyfileobj(reading, draft, _PIECE_BYTES)
                draft.close()
                os.replace(draft.name, target)
            except BaseException:
                os.unlink(draft.name)
                raise
