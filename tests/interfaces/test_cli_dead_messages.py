"""``longshore dead`` where dead messages exist: through a server whose store has messages."""

import getpass
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from longshore.core.maximums import RECEIVE_LIMIT
from longshore.interfaces.cli.exit_codes import ExitCode
from tests.interfaces.command_line import Cli, CommandResult
from tests.interfaces.dead_store import fill_with_message, id_of
from tests.interfaces.server_thread import ServerAddress, run_server

Inside = Callable[..., CommandResult]
SEND, READ, MERGE = id_of("send", "letters"), id_of("read", "letters"), id_of("merge", "report")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerAddress]:
    with run_server(tmp_path / ".longshore", fill_messages=fill_with_message) as served:
        monkeypatch.setenv("LONGSHORE_API_KEY", served.key)
        yield served


@pytest.fixture
def ask(server: ServerAddress, inside: Inside) -> Inside:
    return lambda *arguments: inside("dead", *arguments, "--server", server.url)


def _message(ask: Inside) -> str:
    """The id of the only message."""
    (letter,) = ask("list", "--queue", "odd", "-o", "json").json["deadLetters"]
    return str(letter["id"])


def test_messages_are_listed_among_the_tasks(ask: Inside) -> None:
    answer = ask("list")
    in_json = ask("list", "--limit", "1", "-o", "json").json

    _, *rows = answer.out.splitlines()
    (message,) = in_json["deadLetters"]
    assert [row.split()[0] for row in rows] == [message["id"], SEND, READ, MERGE]
    assert re.search(r" odd +message .*not JSON$", rows[0])
    assert in_json["count"] == 4
    assert (message["kind"], message["receives"]) == ("message", RECEIVE_LIMIT)
    assert (message["name"], message["taskId"]) == (None, None)


def test_a_message_is_shown_with_its_reason_and_with_masked_secrets(ask: Inside) -> None:
    message = _message(ask)

    answer = ask("show", message)

    assert re.search(r"^reason +not JSON$", answer.out, re.MULTILINE)
    assert re.search(r"^received +20 times$", answer.out, re.MULTILINE)
    assert f"longshore dead discard {message}" in answer.out
    assert "is no json" in answer.out
    assert "hunter2" not in answer.out
    assert ask("show", message, "-o", "json").json["body"].endswith("is no json")


def test_replaying_everything_skips_messages(ask: Inside, cli: Cli, server: ServerAddress) -> None:
    command = ("dead", "replay", "--all", "--server", server.url)
    with cli.terminal(*command, env={"LONGSHORE_API_KEY": server.key}) as terminal:
        terminal.read_until("Replay 3 tasks? [y/N]")
        terminal.press("y\n")
        code = terminal.wait()
    again = ask("replay", "--all")

    assert code == 0
    assert "1 message skipped" in terminal.text
    assert again.code == 0
    assert again.err.startswith("1 message skipped")


def test_a_message_cannot_be_replayed(ask: Inside) -> None:
    message = _message(ask)

    answer = ask("replay", message)

    assert answer.code == ExitCode.REFUSED
    assert f"longshore dead discard {message}" in answer.err


def test_discarding_a_message_records_an_event_of_its_queue(
    ask: Inside, server: ServerAddress
) -> None:
    message = _message(ask)

    answer = ask("discard", message)
    again = ask("discard", message)

    events = httpx2.get(
        f"{server.url}/v1/events",
        params={"entity": "QUEUE#odd"},
        headers={"x-api-key": server.key},
    ).json()["events"]
    assert (answer.code, answer.out) == (0, f"discarded {message}\n")
    assert again.code == ExitCode.NOT_FOUND
    assert ask("list", "--queue", "odd").err == "no dead letters\n"
    assert [event["properties"]["reason"] for event in events] == [
        f"discarded by {getpass.getuser()}: not JSON"
    ]


def test_nothing_is_discarded_if_one_of_the_names_is_a_task(ask: Inside) -> None:
    message = _message(ask)

    answer = ask("discard", message, SEND)

    assert answer.code == ExitCode.REFUSED
    assert "history" in answer.err
    assert _message(ask) == message


def test_discard_as_json_lists_the_discarded_messages(ask: Inside) -> None:
    message = _message(ask)

    assert ask("discard", message, message, "-o", "json").json == {"discarded": [message]}
