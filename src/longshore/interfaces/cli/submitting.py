"""The body of ``longshore submit``: a job from a file, and with ``--wait`` its end as well."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from longshore.core.states import JobState, TaskState
from longshore.errors import UsageError
from longshore.interfaces.cli import words
from longshore.interfaces.cli.desks.choosing import desk_for
from longshore.interfaces.cli.desks.desk import Desk, Document, Submitted
from longshore.interfaces.cli.exits import ExitCode
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import print_json, print_pairs
from longshore.interfaces.cli.waiting import wait_for_job

_SHOWN_ROOTS = 10
_SHOWN_FAILURES = 10


async def submit(here: Here, file: Path, *, request_id: str | None, wait: bool) -> int:
    """Accept the job that a file describes; with ``wait`` see it through."""
    document = read_document(file)
    async with desk_for(here, create=True) as desk:
        submitted = await desk.submit(document, request_id or fresh_id())
        if here.json and not wait:
            print_json(submitted.document)
        elif not here.json:
            _tell_accepted(desk, submitted, wait=wait)
        if not wait:
            return ExitCode.OK
        code = await wait_for_job(desk, submitted.job_id)
        return code or _tell_end(await desk.job(submitted.job_id), as_json=here.json)


def fresh_id() -> str:
    """A request id that nobody has used."""
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


def _tell_accepted(desk: Desk, submitted: Submitted, *, wait: bool) -> None:
    job = submitted.document
    roots = job["rootTasks"]
    shown = ", ".join(roots[:_SHOWN_ROOTS]) + (" …" if len(roots) > _SHOWN_ROOTS else "")
    known = "" if submitted.created else f" (accepted before, now {job['status']})"
    pairs = [
        ("job", job["jobId"] + known),
        ("tasks", str(job["totalTasks"])),
        ("roots", shown),
        ("request", job["requestId"]),
    ]
    if not wait:
        steps = [desk.who_works(()), f"longshore job {job['jobId']}"]
        pairs.append(("next", "; ".join(step for step in steps if step)))
    print_pairs(pairs)
    sys.stdout.flush()


def _tell_end(job: Document, *, as_json: bool) -> int:
    completed = job["status"] == JobState.COMPLETED.value
    if as_json:
        print_json(job)
    else:
        created = datetime.fromisoformat(job["createdAt"])
        age = (words.moment(job["finishedAt"]) or created) - created
        print(
            f"{job['status']} in {words.took(max(age, timedelta()))}:"
            f" {job['progress']['completed']} of"
            f" {words.number_of(job['totalTasks'], 'task')} completed"
        )
        failed = [task for task in job["tasks"] if task["status"] == TaskState.FAILED.value]
        for task in failed[:_SHOWN_FAILURES]:
            error = task["error"]["message"] if task["error"] else "failed"
            print(f"  {task['taskId']}: {error}")
        if failed:
            print(f"see: longshore logs {failed[0]['requestId']}")
    return ExitCode.OK if completed else ExitCode.FAILED
