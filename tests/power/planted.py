"""Ways to lose what was promised, each planted in a copy and to be found by cutting the power.

``python -m tests.power.planted`` plants one after the other. One that is not found is a hole in the
model of the disk, in the workload, or in what is looked for afterwards.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CUTS = 2_000


@dataclass(frozen=True, slots=True)
class Edit:
    """A piece of source, and what stands there instead."""

    path: str  # below src/longshore
    text: str
    instead: str


@dataclass(frozen=True, slots=True)
class Fault:
    """What somebody might have got wrong."""

    name: str
    edits: tuple[Edit, ...]


def fault(name: str, *edits: tuple[str, str, str]) -> Fault:
    return Fault(name, tuple(Edit(*edit) for edit in edits))


OPENING = "adapters/sqlite/opening.py"
WRITER = "adapters/sqlite/writer.py"
BLOBS = "adapters/sqlite/blobs.py"
_SYNCED = "        os.fsync(self._file.fileno())\n"
_FOLDERS = "(self._folder, self._folder.parent, self._folder.parent.parent)"
_WRITE = "await self._database.write(work)"
_UNPROMISED = "await self._database.write(work, promised=False)"

FAULTS = (
    fault(
        "nothing is synced",
        (OPENING, "PRAGMA synchronous=FULL;", "PRAGMA synchronous=OFF;"),
        (WRITER, "'FULL' if full else 'NORMAL'", "'OFF'"),
    ),
    fault(
        "commits reach the log only",
        (OPENING, "PRAGMA synchronous=FULL;", "PRAGMA synchronous=NORMAL;"),
        (WRITER, "'FULL' if full else 'NORMAL'", "'NORMAL'"),
    ),
    fault(
        "no commit is synced after the first that need not be",
        (WRITER, "            self._full = full\n", ""),
    ),
    fault(
        "the first of a group decides for all",
        (WRITER, "full=any(item.promised for item in group)", "full=group[0].promised"),
    ),
    fault(
        "a result is not promised",
        (
            "core/task/attempts.py",
            "return step.change(completed, state=",
            "return step.change(completed, promised=False, state=",
        ),
    ),
    fault(
        "a failure is not promised",
        (
            "core/task/attempts.py",
            "return step.change(failed, state=",
            "return step.change(failed, promised=False, state=",
        ),
    ),
    fault(
        "a checkpoint is not promised",
        (
            "core/task/attempts.py",
            "step.change(checkpoint=command.key)",
            "step.change(checkpoint=command.key, promised=False)",
        ),
    ),
    fault(
        "a claim that leaves the machine is not promised",
        ("core/task/attempts.py", "promised=not command.local", "promised=False"),
    ),
    fault(
        "a renewal that leaves the machine is not promised",
        ("core/task/attempts.py", "promised = not lease.local or", "promised = False and"),
    ),
    fault(
        "an approval is not promised",
        (
            "core/task/wishes.py",
            "step.change(approved, completed, state",
            "step.change(approved, completed, promised=False, state",
        ),
    ),
    fault(
        "a key is not promised",
        (
            "adapters/sqlite/keys.py",
            f"        {_WRITE}\n\n    async def find",
            f"        {_UNPROMISED}\n\n    async def find",
        ),
    ),
    fault(
        "a revoked key is not promised",
        ("adapters/sqlite/keys.py", f"did: bool = {_WRITE}", f"did: bool = {_UNPROMISED}"),
    ),
    fault(
        "a definition is not promised",
        (
            "adapters/sqlite/definitions.py",
            f"stored: Definition = {_WRITE}",
            f"stored: Definition = {_UNPROMISED}",
        ),
    ),
    fault(
        "what was spent is not promised",
        ("adapters/sqlite/accounts.py", _WRITE, _UNPROMISED),
    ),
    fault(
        "the row of a blob is not promised",
        (BLOBS, f"replaced = {_WRITE}", f"replaced = {_UNPROMISED}"),
    ),
    fault("the file of a blob is not synced", (BLOBS, _SYNCED, "")),
    fault(
        "the file of a blob is synced before its last bytes are written",
        (BLOBS, "        self._file.flush()\n", ""),
        (BLOBS, _SYNCED, f"{_SYNCED}        self._file.flush()\n"),
        # Otherwise the buffer is empty: large pieces pass it by.
        (
            BLOBS,
            "        self._file.write(piece)\n",
            "        self._file.write(piece[:-9])\n        self._file.write(piece[-9:])\n",
        ),
    ),
    fault(
        "the name of a blob's file is not synced",
        (BLOBS, f"for folder in {_FOLDERS}", "for folder in ()"),
    ),
    fault(
        "only the folder of a blob's file is synced, not those above",
        (BLOBS, f"for folder in {_FOLDERS}", "for folder in (self._folder,)"),
    ),
    fault(
        "a blob is named before its file is kept",
        (
            BLOBS,
            "            await _on_disk(key, draft.keep)\n"
            "            return await self._name(key, draft.size, draft.name, None)\n",
            "            await self._name(key, draft.size, draft.name, None)\n"
            "            await _on_disk(key, draft.keep)\n            return draft.size\n",
        ),
    ),
    fault(
        "a replaced file is removed before the commit",
        (
            BLOBS,
            "            return old[0][0] if old else None\n",
            "            self._remove(old[0][0] if old else None)\n            return None\n",
        ),
    ),
    fault(
        "a deleted file is removed before the commit",
        (
            BLOBS,
            "            return rows(connection, sql, (key,))\n",
            "            gone = rows(connection, sql, (key,))\n"
            "            self._remove(gone[0][0] if gone else None)\n            return gone\n",
        ),
    ),
    fault(
        "inputs are stored after the rows that refer to them",
        (
            "services/producer.py",
            "        await self._creation.keep_documents(planned)\n        place =",
            "        place =",
        ),
        (
            "services/producer.py",
            "            return await self._write_at_once(spec, planned, graph)\n",
            "            row = await self._write_at_once(spec, planned, graph)\n"
            "            await self._creation.keep_documents(planned)\n            return row\n",
        ),
    ),
    fault("the epoch does not grow", (OPENING, "        epoch += 1\n", "")),
    fault(
        "the epoch is not synced",
        (
            OPENING,
            "        epoch += 1\n",
            '        epoch += 1\n        connection.execute("PRAGMA synchronous=OFF")\n',
        ),
    ),
    fault(
        "fences do not count the boots",
        ("core/lease.py", "max(last, epoch << EPOCH_BITS) + 1", "last + 1"),
    ),
    fault(
        "the name of the data folder is not synced",
        (OPENING, "    for above in _made_with(folder):\n", "    for above in ():\n"),
    ),
    fault(
        "a file that was cut short at its birth has no log",
        (OPENING, '            connection.execute("PRAGMA journal_mode=WAL")\n', ""),
    ),
)


@contextmanager
def planted(one: Fault) -> Iterator[str]:
    """A copy of the package with the fault in it, for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        source = Path(folder) / "longshore"
        shutil.copytree(ROOT / "src" / "longshore", source, ignore=shutil.ignore_patterns("*.pyc"))
        for edit in one.edits:
            file = source / edit.path
            before = file.read_text(encoding="utf-8")
            if before.count(edit.text) != 1:
                message = f"{edit.path} has {before.count(edit.text)} times what {one.name!r} edits"
                raise SystemExit(message)
            file.write_text(before.replace(edit.text, edit.instead), encoding="utf-8")
        yield folder


def found(one: Fault, cuts: int) -> str | None:
    """What was seen of the fault; None: nothing was."""
    with planted(one) as folder:
        ended = subprocess.run(
            [sys.executable, "-m", "longshore.testing.power", "--cuts", str(cuts)],
            cwd=folder,  # which comes first where modules are looked for
            capture_output=True,
            text=True,
            check=False,
        )
    counts, _, breaches = ended.stdout.partition("python -m ")
    if ended.returncode == 1 and breaches:
        number = counts.split("power cuts: ")[1].split()[0]
        return f"after {number} cuts: {breaches.splitlines()[1].strip()}"
    return None if ended.returncode == 0 else f"it broke off: {ended.stderr[-300:]}"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=CUTS)
    parser.add_argument("--only", default="", help="part of a fault's name")
    asked = parser.parse_args()
    chosen = [one for one in FAULTS if asked.only in one.name]
    missed = 0
    for one in chosen:
        began = time.monotonic()
        seen = found(one, asked.cuts)
        missed += seen is None
        took = f"{time.monotonic() - began:6.1f} s"
        say(f"{took}  {one.name}: {seen or 'NOT FOUND'}")
    say(f"{len(chosen) - missed} of {len(chosen)} planted faults were found")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
