"""Job files: a job together with the definitions that it needs, in one document.

``{"definitions": [{"name", "runner", …}], "tasks": […], "name"?}``. All of it is checked before
anything is stored, and every problem is reported with its path, so that bad input changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longshore.core.dag import Problem
from longshore.core.definition import BUILTIN, Definition
from longshore.core.submission import definitions_named_in, read_job
from longshore.errors import InvalidJob
from longshore.interfaces.definition_documents import read_definitions
from longshore.ports.definitions import Definitions
from longshore.services.producer import Accepted, Producer

DEFINITIONS = "definitions"


async def accept_file(
    document: Any,
    *,
    tenant: str,
    request_id: str,
    producer: Producer,
    definitions: Definitions,
    task_limit: int,
) -> Accepted:
    """Store the file's definitions and accept its job.

    Raises:
        InvalidJob: with every problem of both; nothing was stored.
        AlreadyExists: the request id belongs to another job.
        UsageError: the request id is not one.
    """
    own, job, problems = _split(document)
    try:
        read_job(job, limit=task_limit)
    except InvalidJob as error:
        problems += error.problems
    problems += await _unknown_names(job, {one.name for one in own}, tenant, definitions)
    if problems:
        raise InvalidJob(problems)
    for definition in own:
        await definitions.put(tenant, definition)
    return await producer.submit(tenant, request_id, job)


def _split(document: Any) -> tuple[list[Definition], Any, list[Any]]:
    if not isinstance(document, Mapping) or DEFINITIONS not in document:
        return [], document, []
    job = {name: value for name, value in document.items() if name != DEFINITIONS}
    read, problems = read_definitions(document[DEFINITIONS], DEFINITIONS)
    return read, job, problems


async def _unknown_names(
    job: Any, own: set[str], tenant: str, stored: Definitions
) -> list[Problem]:
    problems = []
    for path, name in definitions_named_in(job):
        if name not in own and name not in BUILTIN and not await stored.get(tenant, name):
            problems.append(Problem(path=path, message=f"no definition is called {name!r}"))
    return problems
