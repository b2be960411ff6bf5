"""Ways to lose what was promised, each planted in a copy and to be found by cutting the power.

``python -m tests.power.planted_faults`` plants one after the other. One that is not found is a hole
in the model of the disk, in the workload, or in what is looked for afterwards.
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

from tests.planting import After, Argument, Change, Drop, Replace, Text, Value, plant

ROOT = Path(__file__).parents[2]
CUTS = 2_000


@dataclass(frozen=True, slots=True)
class Fault:
    """What somebody might have got wrong."""

    name: str
    changes: tuple[Change, ...]


def fault(name: str, *changes: Change) -> Fault:
    return Fault(name, changes)


FAULTS = (
    fault(
        "nothing is synced",
        Change("adapters.sqlite.store_file:connect", Text("synchronous=FULL;", "synchronous=OFF;")),
        Change(
            "adapters.sqlite.writer:DatabaseWriter._set_synchronous",
            Replace("ternary 'FULL'", "'OFF'"),
        ),
    ),
    fault(
        "commits reach the log only",
        Change(
            "adapters.sqlite.store_file:connect", Text("synchronous=FULL;", "synchronous=NORMAL;")
        ),
        Change(
            "adapters.sqlite.writer:DatabaseWriter._set_synchronous",
            Replace("ternary 'FULL'", "'NORMAL'"),
        ),
    ),
    fault(
        "no commit is synced after the first that need not be",
        Change(
            "adapters.sqlite.writer:DatabaseWriter._set_synchronous", Drop("= _synchronous_full")
        ),
    ),
    fault(
        "the first of a group decides for all",
        Change(
            "adapters.sqlite.writer:DatabaseWriter._commit",
            Argument("_set_synchronous()", "full", "group[0].durable"),
        ),
    ),
    fault(
        "a result is not promised",
        Change("core.tasks.attempts:complete", Argument("change() COMPLETED", "durable", "False")),
    ),
    fault(
        "a failure is not promised",
        Change("core.tasks.attempts:_end_attempt", Argument("change() FAILED", "durable", "False")),
    ),
    fault(
        "a checkpoint is not promised",
        Change("core.tasks.attempts:save_checkpoint", Argument("change()", "durable", "False")),
    ),
    fault(
        "a claim that leaves the machine is not promised",
        Change("core.tasks.attempts:claim", Argument("change()", "durable", "False")),
    ),
    fault(
        "a renewal that leaves the machine is not promised",
        Change("core.tasks.attempts:renew", Value("= local", "False and $2")),
    ),
    fault(
        "an approval is not promised",
        Change("core.tasks.operator:approve", Argument("change()", "durable", "False")),
    ),
    fault(
        "a key is not promised",
        Change("adapters.sqlite.api_keys:SqliteKeys.add", Argument("write()", "durable", "False")),
    ),
    fault(
        "a revoked key is not promised",
        Change(
            "adapters.sqlite.api_keys:SqliteKeys.revoke", Argument("write()", "durable", "False")
        ),
    ),
    fault(
        "a definition is not promised",
        Change(
            "adapters.sqlite.definitions:SqliteDefinitions.put",
            Argument("write()", "durable", "False"),
        ),
    ),
    fault(
        "what was spent is not promised",
        Change(
            "adapters.sqlite.budgets:SqliteBudgets.commit",
            Argument("write()", "durable", "False"),
        ),
    ),
    fault(
        "the row of a blob is not promised",
        Change(
            "adapters.sqlite.blobs:SqliteBlobStore._write_row",
            Argument("write()", "durable", "False"),
        ),
    ),
    fault(
        "the file of a blob is not synced",
        Change("adapters.sqlite.blobs:_Draft.persist", Drop("fsync()")),
    ),
    fault(
        "the file of a blob is synced before its last bytes are written",
        Change(
            "adapters.sqlite.blobs:_Draft.persist",
            (Drop("flush()"), After("fsync()", "self._file.flush()")),
        ),
        # Otherwise the buffer is empty: large pieces pass it by.
        Change(
            "adapters.sqlite.blobs:_Draft.add",
            Replace("write()", ("self._file.write($1[:-9])\nself._file.write($1[-9:])"), nth=2),
        ),
    ),
    fault(
        "the name of a blob's file is not synced",
        Change("adapters.sqlite.blobs:_Draft.persist", Value("for _folder", "()")),
    ),
    fault(
        "only the folder of a blob's file is synced, not those above",
        Change("adapters.sqlite.blobs:_Draft.persist", Value("for _folder", "($1,)")),
    ),
    fault(
        "a blob is named before its file is kept",
        Change(
            "adapters.sqlite.blobs:SqliteBlobStore.put",
            (
                Drop("_write_to_disk() persist"),
                Replace(
                    "return name",
                    ("$1\nawait _write_to_disk(key, draft.persist)\nreturn draft.size"),
                ),
            ),
        ),
    ),
    fault(
        "a replaced file is removed before the commit",
        Change(
            "adapters.sqlite.blobs:SqliteBlobStore._write_row.work",
            Replace("return", ("self._remove($1)\nreturn None")),
        ),
    ),
    fault(
        "a deleted file is removed before the commit",
        Change(
            "adapters.sqlite.blobs:SqliteBlobStore.delete.work",
            Replace(
                "rows()",
                (
                    "gone = rows($1, $2, $3)\n"
                    "self._remove(gone[0][0] if gone else None)\n"
                    "return gone"
                ),
            ),
        ),
    ),
    fault(
        "inputs are stored after the rows that refer to them",
        Change(
            "services.submit:Producer._write_job",
            (
                Drop("_store_documents()"),
                After("_commit()", "await self._store_documents(planned)"),
            ),
        ),
    ),
    fault(
        "the epoch does not grow",
        Change("adapters.sqlite.store_file:_current_epoch", Drop("+=")),
    ),
    fault(
        "the epoch is not synced",
        Change(
            "adapters.sqlite.store_file:_current_epoch",
            After("+=", "connection.execute('PRAGMA synchronous=OFF')"),
        ),
    ),
    fault(
        "fences do not count the boots",
        Change("core.tasks.lease:next_fence", Replace("max()", "$1")),
    ),
    fault(
        "the name of the data folder is not synced",
        Change("adapters.sqlite.store_file:_create", Replace("_new_parents()", "()")),
    ),
    fault(
        "a file that was cut short at its birth has no log",
        Change("adapters.sqlite.store_file:prepare", Drop("execute()")),
    ),
)


@contextmanager
def planted(one: Fault) -> Iterator[str]:
    """A copy of the package with the fault in it, for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        source = Path(folder) / "longshore"
        shutil.copytree(ROOT / "src" / "longshore", source, ignore=shutil.ignore_patterns("*.pyc"))
        plant(one.changes, source, fault=one.name)
        yield folder


def found(one: Fault, cuts: int) -> str | None:
    """What was seen of the fault; None: nothing was."""
    with planted(one) as folder:
        ended = subprocess.run(
            [sys.executable, "-m", "verification.power", "--cuts", str(cuts)],
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
