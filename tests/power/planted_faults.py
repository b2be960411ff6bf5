"""Ways to lose data that was promised, each planted in a copy, which power cuts must reveal.

``python -m tests.power.planted_faults`` plants one fault after the other. A fault that is not found
is a gap in the model of the disk, in the workload, or in the checks.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.planted_runs import add_fault_options, run_faults
from tests.planting import After, Argument, Change, Drop, Replace, Text, Value, plant

ROOT = Path(__file__).parents[2]
CUTS = 2_000


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake, and the changes that plant it."""

    name: str
    changes: tuple[Change, ...]


def _fault(name: str, *changes: Change) -> Fault:
    return Fault(name, changes)


FAULTS = (
    _fault(
        "nothing is synced",
        Change("adapters.sqlite.store_file:connect", Text("synchronous=FULL;", "synchronous=OFF;")),
        Change(
            "adapters.sqlite.writer:DatabaseWriter._commit",
            Replace("ternary 'FULL'", "'OFF'"),
        ),
    ),
    _fault(
        "commits reach the log only",
        Change(
            "adapters.sqlite.store_file:connect", Text("synchronous=FULL;", "synchronous=NORMAL;")
        ),
        Change(
            "adapters.sqlite.writer:DatabaseWriter._commit",
            Replace("ternary 'FULL'", "'NORMAL'"),
        ),
    ),
    _fault(
        "no commit is synced after the first unpromised one",
        Change("adapters.sqlite.writer:DatabaseWriter._commit", Drop("= _synchronous_full")),
    ),
    _fault(
        "the first write of a group decides whether all are synced",
        Change(
            "adapters.sqlite.writer:DatabaseWriter._commit",
            Value("= any()", "group[0].durable"),
        ),
    ),
    _fault(
        "a result is not promised",
        Change("core.tasks.task:complete", Argument("change() COMPLETED", "durable", "False")),
    ),
    _fault(
        "a failure is not promised",
        Change("core.tasks.task:_end_attempt", Argument("change() FAILED", "durable", "False")),
    ),
    _fault(
        "a checkpoint is not promised",
        Change("core.tasks.task:save_checkpoint", Argument("change()", "durable", "False")),
    ),
    _fault(
        "a claim that leaves the machine is not promised",
        Change("core.tasks.task:claim", Argument("change()", "durable", "False")),
    ),
    _fault(
        "a renewal that leaves the machine is not promised",
        Change("core.tasks.task:renew", Value("= local", "False and $2")),
    ),
    _fault(
        "an approval is not promised",
        Change("core.tasks.task:approve", Argument("change()", "durable", "False")),
    ),
    _fault(
        "a key is not promised",
        Change(
            "adapters.sqlite.configuration:SqliteKeys.add", Argument("write()", "durable", "False")
        ),
    ),
    _fault(
        "a revoked key is not promised",
        Change(
            "adapters.sqlite.configuration:SqliteKeys.revoke",
            Argument("write()", "durable", "False"),
        ),
    ),
    _fault(
        "a definition is not promised",
        Change(
            "adapters.sqlite.configuration:SqliteDefinitions.put",
            Argument("write()", "durable", "False"),
        ),
    ),
    _fault(
        "a budget's spending is not promised",
        Change(
            "adapters.sqlite.configuration:SqliteBudgets.commit",
            Argument("write()", "durable", "False"),
        ),
    ),
    _fault(
        "the row of a blob is not promised",
        Change(
            "adapters.sqlite.blobs:SqliteBlobStore._write_row",
            Argument("write()", "durable", "False"),
        ),
    ),
    _fault(
        "the file of a blob is not synced",
        Change("adapters.sqlite.blobs:_persist", Drop("fsync()")),
    ),
    _fault(
        "the file of a blob is synced before its last bytes are written",
        Change(
            "adapters.sqlite.blobs:_persist",
            (Drop("flush()"), After("fsync()", "file.flush()")),
        ),
        # Otherwise the buffer is empty: large writes bypass it.
        Change(
            "adapters.sqlite.blobs:SqliteBlobStore._put_file",
            Value("= head", "file.write(head[:-9]) + file.write(head[-9:])"),
        ),
    ),
    _fault(
        "the name of a blob's file is not synced",
        Change("adapters.sqlite.blobs:_persist", Value("for parents", "()")),
    ),
    _fault(
        "only the folder of a blob's file is synced, not its parents",
        Change("adapters.sqlite.blobs:_persist", Value("for parents", "(path.parent,)")),
    ),
    _fault(
        "a blob's row is written before its file is persisted",
        Change(
            "adapters.sqlite.blobs:SqliteBlobStore._put_file",
            (
                Drop("_write_to_disk() _persist"),
                Replace(
                    "return name",
                    "size = $1\n"
                    "await _write_to_disk(key, _persist, file, draft, path)\n"
                    "return size",
                ),
            ),
        ),
    ),
    _fault(
        "a replaced file is removed before the commit",
        Change(
            "adapters.sqlite.blobs:SqliteBlobStore._write_row.work",
            Replace("return", ("self._remove($1)\nreturn None")),
        ),
    ),
    _fault(
        "a deleted file is removed before the commit",
        Change(
            "adapters.sqlite.blobs:SqliteBlobStore.delete",
            Replace("select()", "[self._remove(gone[0]) or gone for gone in $0]"),
        ),
    ),
    _fault(
        "inputs are stored after the rows that refer to them",
        Change("services.submit:Producer._creation_of", Drop("put()")),
        Change(
            "services.submit:Producer._create_jobs",
            After(
                "= create_jobs()",
                "for job in batch.values():\n    for key, data in job.planned.blobs:\n"
                "        await self.backend.blobs.put(key, data)",
            ),
        ),
    ),
    _fault(
        "the epoch does not grow",
        Change("adapters.sqlite.store_file:_current_epoch", Drop("+=")),
    ),
    _fault(
        "the epoch is not synced",
        Change(
            "adapters.sqlite.store_file:_current_epoch",
            After("+=", "connection.execute('PRAGMA synchronous=OFF')"),
        ),
    ),
    _fault(
        "fences do not count the boots",
        Change("core.tasks.lease:next_fence", Replace("max()", "$1")),
    ),
    _fault(
        "the name of the data folder is not synced",
        Change("adapters.sqlite.store_file:_create", Replace("_new_parents()", "()")),
    ),
    _fault(
        "a database whose creation was interrupted has no write-ahead log",
        Change("adapters.sqlite.store_file:migrate", Drop("execute()", nth=1)),
    ),
)


@contextmanager
def planted(fault: Fault) -> Iterator[str]:
    """A temporary copy of the package with the fault in it."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        source = Path(folder) / "longshore"
        shutil.copytree(ROOT / "src" / "longshore", source, ignore=shutil.ignore_patterns("*.pyc"))
        plant(fault.changes, source, fault=fault.name)
        yield folder


def violation_of(fault: Fault, cuts: int) -> str | None:
    """Returns the first violation that the fault causes, or None if it causes none."""
    with planted(fault) as folder:
        ended = subprocess.run(
            [sys.executable, "-m", "verification.power", "--cuts", str(cuts)],
            cwd=folder,  # Python looks for modules here first
            env={"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    counts, _, violations = ended.stdout.partition("python -m ")
    if ended.returncode == 1 and violations:
        number = counts.split("power cuts: ")[1].split()[0]
        return f"after {number} cuts: {violations.splitlines()[1].strip()}"
    return None if ended.returncode == 0 else f"it failed: {ended.stderr[-300:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=CUTS, help="power cuts for each fault, at most")
    add_fault_options(parser)
    options = parser.parse_args()
    return run_faults(FAULTS, options, lambda fault: violation_of(fault, options.cuts))


if __name__ == "__main__":
    raise SystemExit(main())
