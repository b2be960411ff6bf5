"""Job files: a job together with the definitions that it needs, in one document.

``{"definitions": [{"name", "runner", …}], "tasks": […], "name"?}``; definitions may also stand by
their names, as in files that have nothing else. All of it is checked before anything is stored, and
every problem is reported with its path, so that bad input changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from longshore.core.dag import Problem
from longshore.core.definition import BUILTIN, Definition
from longshore.core.submission import definitions_named_in, read_job
from longshore.errors import InvalidJob
from longshore.interfaces.definition_documents import read_definitions
from longshore.interfaces.definition_schema import DEFINITIONS
from longshore.ports.definitions import Definitions
from longshore.services.producer import Accepted, Producer


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

    async def known(name: str) -> bool:
        return await definitions.get(tenant, name) is not None

    own, job = await checked_file(document, known=known, task_limit=task_limit)
    for definition in own:
        await definitions.put(tenant, definition)
    return await producer.submit(tenant, request_id, job)


async def checked_file(
    document: Any, *, known: Callable[[str], Awaitable[bool]], task_limit: int
) -> tuple[list[Definition], Any]:
    """The definitions and the job of a file, as far as can be told before anything is stored.

    Args:
        known: whether a definition of this name is stored.

    Raises:
        InvalidJob: with every problem of both.
    """
    own, job, problems = _split(document)
    try:
        read_job(job, limit=task_limit)
    except InvalidJob as error:
        problems += error.problems
    names = {one.name for one in own} | BUILTIN.keys()
    asked: dict[str, bool] = {}
    for path, name in definitions_named_in(job):
        if name not in names and name not in asked:
            asked[name] = await known(name)
        if not asked.get(name, True):
            problems.append(Problem(path=path, message=f"no definition is called {name!r}"))
    if problems:
        raise InvalidJob(problems)
    return own, job


def _split(document: Any) -> tuple[list[Definition], Any, list[Any]]:
    if not isinstance(document, Mapping) or DEFINITIONS not in document:
        return [], document, []
    job = {name: value for name, value in document.items() if name != DEFINITIONS}
    read, problems = read_definitions(document[DEFINITIONS], DEFINITIONS)
    return read, job, problems
