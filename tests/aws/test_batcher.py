"""Entries of many callers travel together, and each caller hears of its own."""

import asyncio
from typing import Any

import pytest

from longshore.adapters.aws.queue.batcher import Batcher
from longshore.errors import NotDeployed
from longshore.testing.clock import FakeClock

FINAL = frozenset({"InvalidMessageContents"})


class FakeSqs:
    """Refuses what is marked as bad; answers when it is told to."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.released = asyncio.Event()

    async def call(self, name: str, operation: str, *, alters: bool, Entries: Any) -> Any:  # noqa: N803
        self.requests.append([entry["MessageBody"] for entry in Entries])
        await self.released.wait()
        if name == "absent":
            raise NotDeployed(name)
        bad = [one for one in Entries if one["MessageBody"].startswith("bad")]
        return {
            "Successful": [{"Id": one["Id"]} for one in Entries if one not in bad],
            "Failed": [{"Id": one["Id"], "Code": "InvalidMessageContents"} for one in bad],
        }


def entries(*bodies: str) -> list[dict[str, Any]]:
    return [{"MessageBody": body} for body in bodies]


async def send(batches: Batcher, *bodies: str, name: str = "queue") -> list[str | None]:
    return await batches.run(name, "send_message_batch", entries(*bodies), final_codes=FINAL)


def test_who_comes_while_a_request_is_out_goes_with_the_next_and_hears_of_its_own() -> None:
    async def scenario() -> None:
        sqs = FakeSqs()
        batches = Batcher(sqs.call, FakeClock())
        callers = [asyncio.ensure_future(send(batches, "first"))]
        await asyncio.sleep(0)
        wanted = [("bad 1", "a"), ("b",), tuple(f"c{n}" for n in range(12)), ("d", "bad 2")]
        callers += [asyncio.ensure_future(send(batches, *bodies)) for bodies in wanted]
        gone = asyncio.ensure_future(send(batches, "nobody waits for this"))
        await asyncio.sleep(0)
        gone.cancel()
        sqs.released.set()

        first, *others = await asyncio.gather(*callers)

        refused = "InvalidMessageContents"
        assert first == [None]
        assert others == [[refused, None], [None], [None] * 12, [None, refused]]
        assert sqs.requests[0] == ["first"]
        assert [len(one) for one in sqs.requests] <= [1, 10, 10]
        assert sorted(body for one in sqs.requests for body in one) == sorted(
            ["first", "nobody waits for this", *(body for some in wanted for body in some)]
        )

    asyncio.run(scenario())


def test_a_queue_that_is_not_there_is_told_to_all_who_asked_for_it() -> None:
    async def scenario() -> None:
        sqs = FakeSqs()
        sqs.released.set()
        batches = Batcher(sqs.call, FakeClock())

        told = await asyncio.gather(
            *(send(batches, "x", name="absent") for _ in range(3)), return_exceptions=True
        )

        assert [type(one) for one in told] == [NotDeployed] * 3
        with pytest.raises(NotDeployed):
            await send(batches, "again", name="absent")
        assert await send(batches, name="absent") == []

    asyncio.run(scenario())
