"""How a command finds the job that a prefix of an id names."""

import asyncio
from typing import Any

import pytest

from longshore.errors import UsageError
from longshore.interfaces.cli.client import MAX_IDS, ApiClient, EntityRef
from longshore.interfaces.cli.options import GlobalOptions
from longshore.services.documents import IdList
from longshore.testing.clock import FakeClock

LARGE = f"job-01{'a' * 22}"
OTHER = f"job-09{'a' * 22}"


class _Ids:
    """The ids of a store, as an application finds them."""

    def __init__(self, *job_ids: str) -> None:
        tasks = [f"{LARGE}_{number:03}" for number in range(MAX_IDS)]
        self._ids = sorted([*job_ids, *tasks])

    async def find_ids(self, prefix: str, *, limit: int) -> IdList:
        return IdList(ids=[id_ for id_ in self._ids if id_.startswith(prefix)][:limit])


def _resolve(text: str, *job_ids: str) -> EntityRef:
    app: Any = _Ids(*job_ids)
    client = ApiClient(GlobalOptions(), app, "of a test", FakeClock().now)
    return asyncio.run(client.resolve(text))


def test_a_job_with_many_tasks_is_found_by_a_prefix() -> None:
    assert _resolve("0", LARGE) == EntityRef(LARGE)


def test_a_job_behind_one_with_many_tasks_makes_a_prefix_ambiguous() -> None:
    with pytest.raises(UsageError, match="is ambiguous"):
        _resolve("0", LARGE, OTHER)

    assert _resolve("09", LARGE, OTHER) == EntityRef(OTHER)
