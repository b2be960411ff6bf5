"""The body of ``longshore submit``: a job from a file, and with ``--wait`` its end as well."""

from __future__ import annotations

import contextlib
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import UsageError
from longshore.interfaces.cli.clients.api_client import ApiClient, Document, SubmitResult
from longshore.interfaces.cli.clients.selection import open_client
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.operations.wait import wait_for_job
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import print_json, print_pairs
from longshore.interfaces.document_files import UnreadableDocument, parse_json, parse_yaml

_MAX_SHOWN_ROOTS = 10
_VALUE_LIMIT = 2_000_000  # of a job file, including the values that aliases expand to
_MAX_SHOWN_FAILURES = 10


async def submit(options: GlobalOptions, file: Path, *, request_id: str | None, wait: bool) -> int:
    """Accept the job that a file describes; with ``wait`` see it through."""
    document = read_document(file)
    async with open_client(options, create=True) as desk:
        submitted = await desk.submit(document, request_id or new_request_id())
        if options.json and not wait:
            print_json(submitted.document)
        elif not options.json:
            _print_accepted(desk, submitted, wait=wait)
        if not wait:
            return ExitCode.OK
        code = await wait_for_job(desk, submitted.job_id)
        return code or _print_end(await desk.job(submitted.job_id), as_json=options.json)


def new_request_id() -> str:
    """A request id that nobody has used."""
    from longshore.wiring.services import new_id

    return new_id()


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


def _print_accepted(client: ApiClient, submitted: SubmitResult, *, wait: bool) -> None:
    job = submitted.document
    roots = job["rootTasks"]
    shown = ", ".join(roots[:_MAX_SHOWN_ROOTS]) + (" …" if len(roots) > _MAX_SHOWN_ROOTS else "")
    known = "" if submitted.created else f" (accepted before, now {job['status']})"
    pairs = [
        ("job", job["jobId"] + known),
        ("tasks", str(job["totalTasks"])),
        ("roots", shown),
        ("request", job["requestId"]),
    ]
    if not wait:
        steps = [client.worker_command(()), f"longshore job {job['jobId']}"]
        pairs.append(("next", "; ".join(step for step in steps if step)))
    print_pairs(pairs)
    sys.stdout.flush()


def _print_end(job: Document, *, as_json: bool) -> int:
    completed = job["status"] == JobState.COMPLETED.value
    if as_json:
        print_json(job)
    else:
        created = datetime.fromisoformat(job["createdAt"])
        age = (formats.parse_time(job["finishedAt"]) or created) - created
        print(
            f"{job['status']} in {formats.duration_text(max(age, timedelta()))}:"
            f" {job['progress']['completed']} of"
            f" {formats.plural(job['totalTasks'], 'task')} completed"
        )
        failed = [task for task in job["tasks"] if task["status"] == TaskState.FAILED.value]
        for task in failed[:_MAX_SHOWN_FAILURES]:
            error = task["error"]["message"] if task["error"] else "failed"
            print(f"  {task['taskId']}: {error}")
        if failed:
            print(f"see: longshore logs {failed[0]['requestId']}")
    return ExitCode.OK if completed else ExitCode.FAILED
