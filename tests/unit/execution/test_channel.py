"""The child's end of the channel: whole lines from any thread, and a reply for each step."""

import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from longshore.execution.runners import channel as channels
from longshore.execution.runners.channel import Channel


class WorkerEnd:
    """The other end."""

    def __init__(self) -> None:
        self._reading, writing = os.pipe()
        reading, self._writing = os.pipe()
        self.channel = Channel(writing, reading)
        self._ends = (writing, reading)
        self._lines = os.fdopen(self._reading, "rb", closefd=False)

    def receive(self) -> Any:
        return json.loads(self._lines.readline())

    def reply(self, reply: Any) -> None:
        os.write(self._writing, json.dumps(reply).encode() + b"\n")

    def close_replies(self) -> None:
        os.close(self._writing)
        self._writing = os.open(os.devnull, os.O_WRONLY)

    def close(self) -> None:
        for number in (*self._ends, self._reading, self._writing):
            os.close(number)


@pytest.fixture
def worker() -> Iterator[WorkerEnd]:
    worker = WorkerEnd()
    yield worker
    worker.close()


def test_a_message_is_one_line(worker: WorkerEnd) -> None:
    worker.channel.send("log", text="two\nlines")

    assert worker.receive() == {"type": "log", "text": "two\nlines"}


def test_long_messages_of_many_threads_do_not_mix(worker: WorkerEnd) -> None:
    def speak(letter: str) -> None:
        for _ in range(5):
            worker.channel.send("result", value=letter * 200_000)

    threads = [threading.Thread(target=speak, args=(letter,)) for letter in "abc"]
    for thread in threads:
        thread.start()
    received = [worker.receive()["value"] for _ in range(15)]
    for thread in threads:
        thread.join()

    assert sorted(received) == [letter * 200_000 for letter in "aaaaabbbbbccccc"]


def test_a_step_waits_for_its_answer(worker: WorkerEnd) -> None:
    worker.reply({"stored": "one"})

    worker.channel.report_step("one", {"n": 1})

    assert worker.receive() == {"type": "step", "name": "one", "result": {"n": 1}}


def test_steps_of_many_threads_get_each_its_own_answer(worker: WorkerEnd) -> None:
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            worker.channel.report_step(name, None)
        except BaseException as error:  # noqa: BLE001 - passed to the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"step {n}",)) for n in range(20)]
    for thread in threads:
        thread.start()
    for _ in threads:
        worker.reply({"stored": worker.receive()["name"]})
    for thread in threads:
        thread.join()

    assert errors == []


@pytest.mark.parametrize("reply", [{"stored": "other"}, None, []])
def test_a_step_with_a_different_reply_counts_as_not_stored(worker: WorkerEnd, reply: Any) -> None:
    worker.reply(reply)

    with pytest.raises(ConnectionError, match="did not confirm step 'one'"):
        worker.channel.report_step("one", 1)


def test_a_step_without_a_reply_counts_as_not_stored(worker: WorkerEnd) -> None:
    worker.close_replies()

    with pytest.raises(ConnectionError, match="did not confirm step 'one'"):
        worker.channel.report_step("one", 1)


def test_a_message_above_the_limit_is_not_sent(
    worker: WorkerEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "LINE_LIMIT_BYTES", 100)

    with pytest.raises(ValueError, match="exceeds 100 bytes"):
        worker.channel.send("step", result="x" * 100)
    worker.channel.send("log", text="short")

    assert worker.receive() == {"type": "log", "text": "short"}
