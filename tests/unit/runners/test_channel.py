"""The child's end of the channel: whole lines, whoever speaks, and each step its own answer."""

import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from longshore.runners import channel as channels
from longshore.runners.channel import Channel


class Worker:
    """The other end."""

    def __init__(self) -> None:
        self._reading, writing = os.pipe()
        reading, self._writing = os.pipe()
        self.channel = Channel(writing, reading)
        self._ends = (writing, reading)
        self._lines = os.fdopen(self._reading, "rb", closefd=False)

    def hear(self) -> Any:
        return json.loads(self._lines.readline())

    def answer(self, reply: Any) -> None:
        os.write(self._writing, json.dumps(reply).encode() + b"\n")

    def hang_up(self) -> None:
        os.close(self._writing)
        self._writing = os.open(os.devnull, os.O_WRONLY)

    def close(self) -> None:
        for number in (*self._ends, self._reading, self._writing):
            os.close(number)


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


def test_a_message_is_one_line(worker: Worker) -> None:
    worker.channel.say("log", text="two\nlines")

    assert worker.hear() == {"type": "log", "text": "two\nlines"}


def test_long_messages_of_many_threads_do_not_mix(worker: Worker) -> None:
    def speak(letter: str) -> None:
        for _ in range(5):
            worker.channel.say("log", text=letter * 200_000)

    threads = [threading.Thread(target=speak, args=(letter,)) for letter in "abc"]
    for thread in threads:
        thread.start()
    heard = [worker.hear()["text"] for _ in range(15)]
    for thread in threads:
        thread.join()

    assert sorted(heard) == [letter * 200_000 for letter in "aaaaabbbbbccccc"]


def test_a_step_waits_for_its_answer(worker: Worker) -> None:
    worker.answer({"kept": "one"})

    worker.channel.step("one", {"n": 1})

    assert worker.hear() == {"type": "step", "name": "one", "result": {"n": 1}}


def test_steps_of_many_threads_get_each_its_own_answer(worker: Worker) -> None:
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            worker.channel.step(name, None)
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"step {n}",)) for n in range(20)]
    for thread in threads:
        thread.start()
    for _ in threads:
        worker.answer({"kept": worker.hear()["name"]})
    for thread in threads:
        thread.join()

    assert errors == []


@pytest.mark.parametrize("reply", [{"kept": "other"}, None, []])
def test_a_step_with_another_answer_is_not_taken_for_kept(worker: Worker, reply: Any) -> None:
    worker.answer(reply)

    with pytest.raises(ConnectionError, match="did not keep step 'one'"):
        worker.channel.step("one", 1)


def test_a_step_whose_worker_is_gone_is_not_taken_for_kept(worker: Worker) -> None:
    worker.hang_up()

    with pytest.raises(ConnectionError, match="did not keep step 'one'"):
        worker.channel.step("one", 1)


def test_a_message_that_nobody_would_read_is_not_sent(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "LINE_LIMIT_BYTES", 100)

    with pytest.raises(ValueError, match="at most 100 can be sent"):
        worker.channel.say("step", result="x" * 100)
    worker.channel.say("log", text="short")

    assert worker.hear() == {"type": "log", "text": "short"}
