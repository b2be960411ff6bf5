"""The body of ``longshore submit``: a job from a file, and with ``--wait`` its end as well."""

from __future__ import annotations

import contextlib
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import UsageError
from longshore.interfaces.cli.client import ApiClient, new_request_id, open_client
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.operations.wait import wait_for_job
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import print_json, print_pairs
from longshore.interfaces.document_files import UnreadableDocument, parse_json, parse_yaml
from longshore.services.documents import AcceptedJobDocument, JobDetailDocument

_MAX_SHOWN_ROOTS = 10
_VALUE_LIMIT = 2_000_000  # of a job file, including the values that aliases expand to
_MAX_SHOWN_FAILURES = 10


async def submit(options: GlobalOptions, file: Path, *, request_id: str | None, wait: bool) -> int:
    """Accept the job that a file describes; with ``wait`` see it through."""
    document = read_document(file)
    async with open_client(options, create=True) as desk:
        submitted = await desk.app.submit_file(document, request_id=request_id or new_request_id())
        if options.json and not wait:
            print_json(submitted)
        elif not options.json:
            _print_accepted(desk, submitted, wait=wait)
        if not wait:
            return ExitCode.OK
        code = await wait_for_job(desk, submitted.job_id)
        return code or _print_end(await desk.get_job(submitted.job_id), as_json=options.json)


def read_document(file: Path) -> Any:
    """What a YAML or JSON file says.

    Raises:
        UsageError: it cannot be read or understood; the message says where.
    """
    shown = "stdin" if str(file) == "-" else str(file)
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        text = data.decode()
    except OSError as error:
        message = f"{shown} cannot be read: {error.strerror}"
        raise UsageError(message) from error
    except UnicodeDecodeError as error:
        message = f"{shown} is not UTF-8 text"
        raise UsageError(message) from error
    return _parse(text, shown)


def _parse(text: str, source: str) -> Any:
    with contextlib.suppress(UnreadableDocument):
        return parse_json(text)
    # Nearly every JSON document is YAML too; the error of the YAML reader has a line.
    try:
        return parse_yaml(text, value_limit=_VALUE_LIMIT)[0]
    except UnreadableDocument as error:
        line = "" if error.line is None else f", line {error.line}"
        message = f"{source}{line}: {error}"
        raise UsageError(message) from error


def _print_accepted(client: ApiClient, job: AcceptedJobDocument, *, wait: bool) -> None:
    roots = job.root_tasks
    shown = ", ".join(roots[:_MAX_SHOWN_ROOTS]) + (" …" if len(roots) > _MAX_SHOWN_ROOTS else "")
    known = "" if job.created else f" (accepted before, now {job.status})"
    pairs = [
        ("job", job.job_id + known),
        ("tasks", str(job.total_tasks)),
        ("roots", shown),
        ("request", job.request_id),
    ]
    if not wait:
        steps = [client.worker_command(()), f"longshore job {job.job_id}"]
        pairs.append(("next", "; ".join(step for step in steps if step)))
    print_pairs(pairs)
    sys.stdout.flush()


def _print_end(job: JobDetailDocument, *, as_json: bool) -> int:
    completed = job.status is JobState.COMPLETED
    if as_json:
        print_json(job)
    else:
        created = datetime.fromisoformat(job.created_at)
        age = (datetime.fromisoformat(job.finished_at) if job.finished_at else created) - created
        print(
            f"{job.status} in {formats.duration_text(max(age, timedelta()))}:"
            f" {job.progress.completed} of"
            f" {formats.plural(job.total_tasks, 'task')} completed"
        )
        failed = [task for task in job.tasks if task.status is TaskState.FAILED]
        for task in failed[:_MAX_SHOWN_FAILURES]:
            error = task.error.message if task.error else "failed"
            print(f"  {task.task_id}: {error}")
        if failed:
            print(f"see: longshore logs {failed[0].request_id}")
    return ExitCode.OK if completed else ExitCode.FAILED
