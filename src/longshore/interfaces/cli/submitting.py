"""The body of ``longshore submit``: a job from a file, and with ``--wait`` its work as well."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from longshore.core.graph import Graph
from longshore.core.rows import JobRow
from longshore.core.states import JobState, TaskState
from longshore.errors import UsageError
from longshore.interfaces import views
from longshore.interfaces.cli import words
from longshore.interfaces.cli.exits import ExitCode
from longshore.interfaces.cli.listing import all_tasks
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import print_json, print_pairs
from longshore.interfaces.cli.session import Session, opened, settings_for
from longshore.interfaces.cli.waiting import wait_for_job
from longshore.interfaces.job_files import accept_file
from longshore.services.producer import Accepted

_SHOWN_ROOTS = 10
_SHOWN_FAILURES = 10


async def submit(here: Here, file: Path, *, request_id: str | None, wait: bool) -> int:
    """Accept the job that a file describes; with ``wait`` see it through."""
    settings = settings_for(here)
    document = read_document(file)
    request_id = request_id or _fresh_id()
    async with opened(settings) as session:
        accepted = await accept_file(
            document,
            tenant=settings.tenant,
            request_id=request_id,
            producer=session.producer,
            definitions=session.backend.definitions,
            task_limit=settings.limits.max_tasks_per_job,
        )
        if not (here.json and wait):
            await _tell_accepted(session, accepted, as_json=here.json, wait=wait)
        if not wait:
            return ExitCode.OK
        code = await wait_for_job(session, accepted.job.id)
        return code or await _tell_end(session, accepted.job.id, as_json=here.json)


def _fresh_id() -> str:
    from longshore.wiring import new_id

    return new_id()


class _Loader(yaml.SafeLoader):
    """YAML without its dates: in JSON, which is what a job is made of, a time is a text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the library declares it so
        letter: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
        for letter, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    # The library's own signature.
    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge"):
                if key.value in seen:
                    problem = f"{key.value!r} is there twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


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
    return _parsed(text, shown)


def _parsed(text: str, shown: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # Every JSON document is YAML too, nearly; the message for either is YAML's.
        pass
    try:
        # The loader is a safe one: it makes plain values and nothing else.
        return yaml.load(text, _Loader)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        message = f"{shown}{place}: {error.problem or error.context}"
        raise UsageError(message) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        message = f"{shown} is neither YAML nor JSON: {error}"
        raise UsageError(message) from error


async def _tell_accepted(
    session: Session, accepted: Accepted, *, as_json: bool, wait: bool
) -> None:
    job = accepted.job
    roots = await _roots(session, job)
    if as_json:
        document = {
            "jobId": job.id,
            "status": job.state.value,
            "totalTasks": job.total,
            "rootTasks": roots,
            "createdAt": views.job_document(job, exit_code=None)["createdAt"],
            "requestId": job.spec.request_id,
            "created": accepted.created,
        }
        print_json(document)
        return
    shown = ", ".join(roots[:_SHOWN_ROOTS]) + (" …" if len(roots) > _SHOWN_ROOTS else "")
    known = "" if accepted.created else f" (accepted before, now {job.state})"
    pairs = [
        ("job", job.id + known),
        ("tasks", str(job.total)),
        ("roots", shown),
        ("request", job.spec.request_id),
    ]
    if not wait:
        pairs.append(("next", f"longshore worker --burst; longshore job {job.id}"))
    print_pairs(pairs)
    sys.stdout.flush()


async def _roots(session: Session, job: JobRow) -> list[str]:
    graph = Graph.from_json(await session.documents.load(job.graph))
    return [key for key, parents in zip(graph.keys, graph.parents, strict=True) if not parents]


async def _tell_end(session: Session, job_id: str, *, as_json: bool) -> int:
    job = await session.backend.ledger.job(job_id)
    if job is None:
        return ExitCode.FAILED
    rows = await all_tasks(session.backend.ledger, job)
    if as_json:
        document = views.job_document(job, exit_code=views.job_exit_code(job, rows))
        document["tasks"] = [views.task_document(row) for row in rows]
        print_json(document)
    else:
        age = (job.finished_at or job.updated_at) - job.spec.created_at
        print(
            f"{job.state} in {words.took(age)}: {len(job.completed)} of"
            f" {words.number_of(job.total, 'task')} completed"
        )
        failed = [row for row in rows if row.state is TaskState.FAILED]
        for row in failed[:_SHOWN_FAILURES]:
            print(f"  {row.spec.key}: {row.failure.message if row.failure else 'failed'}")
        if failed:
            print(f"see: longshore logs {failed[0].id}")
    return ExitCode.OK if job.state is JobState.COMPLETED else ExitCode.FAILED
