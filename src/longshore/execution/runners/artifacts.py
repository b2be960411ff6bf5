"""Copies artifacts into the attempt's folder, atomically.

A copy gets its final name when it is complete, so an attempt that is killed while it copies leaves
no partial file that looks like an artifact.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

from longshore.core.documents import safe_name

_FOLDER_MODE = 0o700
_CHUNK_BYTES = 1024 * 1024


def copy_artifact(path: str, artifacts: str, name: str | None = None) -> tuple[str, list[str]]:
    """Copy a file, or each file of a folder, to ``name`` below the folder ``artifacts``.

    In a folder, links that point outside it and special files (pipes, sockets) are skipped.

    Returns:
        The name of the artifact, and the entries of its folder that were skipped.

    Raises:
        FileNotFoundError: ``path`` does not exist.
        ValueError: ``path`` is neither a file nor a folder.
    """
    source = os.path.realpath(path, strict=True)
    artifacts_folder = os.path.realpath(artifacts)
    if name is None and (source == artifacts_folder or _is_inside(source, artifacts_folder)):
        return os.path.relpath(source, artifacts_folder), []
    artifact_name = safe_name(
        os.path.basename(os.path.abspath(path)) if name is None else str(name)
    )
    target = os.path.join(artifacts_folder, artifact_name)
    skipped: list[str] = []
    if os.path.isdir(source):
        # A list, because the copies may be written into the folder that is being read.
        for relative in list(_list_files(source, skipped)):
            _copy(os.path.join(source, relative), os.path.join(target, relative), artifacts_folder)
    elif os.path.isfile(source):
        _copy(source, target, artifacts_folder)
    else:
        raise ValueError(f"{path} is neither a file nor a folder")
    return artifact_name, skipped


def _list_files(folder: str, skipped: list[str]) -> Iterator[str]:
    """Yields the paths of files relative to the folder, including links that stay inside it."""
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in sorted(names + links):
            full = os.path.join(parent, name)
            real = os.path.realpath(full)
            relative = os.path.relpath(full, folder)
            if _is_inside(real, folder) and os.path.isfile(real):
                yield relative
            else:
                skipped.append(relative)


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))


def _copy(source: str, target: str, artifacts: str) -> None:
    os.makedirs(os.path.dirname(target), mode=_FOLDER_MODE, exist_ok=True)
    with open(source, "rb") as reading:
        # Next to the artifacts folder: on the same disk, and not an artifact itself.
        beside = os.path.dirname(artifacts)
        with tempfile.NamedTemporaryFile(dir=beside, prefix=".copying-", delete=False) as draft:
            try:
                shutil.copyfileobj(reading, draft, _CHUNK_BYTES)
                draft.close()
                os.replace(draft.name, target)
            except BaseException:
                os.unlink(draft.name)
                raise
