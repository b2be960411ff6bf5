"""``longshore backup`` and ``longshore restore``: copies of a data folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

from longshore.core.inspection import BackupFacts
from longshore.interfaces.cli.client import load_command_settings
from longshore.interfaces.cli.exit_codes import ExitCode, print_stderr
from longshore.interfaces.cli.options import GlobalOptions, argument, command
from longshore.interfaces.cli.render import formats, screen


@command(
    ("longshore backup /mnt/backups/monday", "into a new folder"),
    ("longshore backup /mnt/backups/monday.tar.zst", "into one compressed file"),
    ("longshore backup -o json /mnt/backups/monday", "for a timer"),
)
def backup(
    options: GlobalOptions,
    target: Annotated[Path, argument("TARGET", "A new folder, or a file FILE.tar.zst.")],
) -> int:
    """Back up the data folder. Servers and workers can keep running.

    The backup has all jobs, events, output, results and artifacts of one moment, definitions,
    budgets and the hashes of API keys, but not the machine's own key file. Secrets that jobs
    contain are in it: protect it like the data folder.

    TARGET appears only when the backup is complete. Meanwhile no file of a removed job is deleted,
    and a second backup is refused. Exits with 1 if the data folder has lost files of results or
    artifacts: the backup is created without them.
    """
    from longshore.wiring.services import back_up

    settings = load_command_settings(options).settings
    with _progress("backing up") as report:
        facts = back_up(settings, target.absolute(), report)
    options.print_answer(
        {"backup": str(target.absolute()), **_as_json(facts)},
        f"{target}: {formats.plural(facts.jobs, 'job')}, {formats.plural(facts.tasks, 'task')},"
        f" {formats.plural(facts.blobs, 'file')}, {formats.size(facts.size_bytes)};"
        f" restore it with `longshore restore {target} --data-dir NEW`",
    )
    if facts.missing_blobs:
        lost = formats.plural(facts.missing_blobs, "file")
        print_stderr(
            f"longshore: {lost} of results or artifacts are missing in the data folder, and in this"
            " backup; see `longshore doctor --audit`, and keep earlier backups"
        )
        return ExitCode.FAILED
    return ExitCode.OK


@command(
    ("longshore restore /mnt/backups/monday --data-dir /var/lib/longshore", "to this folder"),
    ("longshore restore monday.tar.zst", "to the data folder of the settings"),
)
async def restore(
    options: GlobalOptions,
    source: Annotated[Path, argument("SOURCE", "A folder or file that `backup` stored.")],
) -> None:
    """Restore a backup to the data folder, which must be empty or not exist.

    Everything is checked before the folder gets its name. Tasks that were running when the backup
    was made run again: that attempt counts. What happened after the backup is gone, also jobs that
    were accepted: submit them again.

    Restore only backups that you trust: jobs in it can run any command.
    """
    from longshore.wiring.services import restore as restore_backup

    settings = load_command_settings(options).settings
    with _progress("restoring") as report:
        facts = await restore_backup(settings, source.absolute(), report)
    stored = facts.backup
    if options.json:
        screen.print_json(
            {
                "dataFolder": str(facts.folder),
                "epoch": facts.epoch,
                "leasesEnded": facts.leases_ended,
                "keyFile": str(facts.key_file),
                "backup": _as_json(stored),
            }
        )
        return
    created_at = stored.created_at
    age = formats.relative_time(created_at, facts.restored_at)
    print(
        f"{facts.folder}: restored as it was {age} ({created_at:%Y-%m-%d %H:%M:%S} UTC):"
        f" {formats.plural(stored.jobs, 'job')}, {formats.plural(stored.tasks, 'task')};"
        f" {formats.plural(facts.leases_ended, 'running task')} will run again"
    )
    print(
        f"This machine has a new API key in {facts.key_file}. Check:\n"
        "  longshore doctor --audit   that everything is there\n"
        "  longshore keys list        and revoke the keys of a machine that was lost\n"
        "  longshore queues list      queues are paused as they were\n"
        "Clients that follow events have to read again. Submit again what was accepted since."
    )


def _as_json(facts: BackupFacts) -> dict[str, object]:
    return {
        "createdAt": facts.created_at.isoformat(),
        "version": facts.version,
        "schema": facts.schema,
        "jobs": facts.jobs,
        "tasks": facts.tasks,
        "files": facts.blobs,
        "missingFiles": facts.missing_blobs,
        "bytes": facts.size_bytes,
    }


@contextlib.contextmanager
def _progress(text: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal, which disappears at the end; nothing elsewhere."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    terminal = screen.console(stderr=True, moves_cursor=True)
    columns = (TextColumn(text), BarColumn(), DownloadColumn())
    with Progress(
        *columns, console=terminal, transient=True, disable=not terminal.is_terminal
    ) as progress:
        bar = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)
