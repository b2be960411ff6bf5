"""``longshore definitions …`` and ``keys …``, asked of the folder and of a server."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml

from longshore.interfaces.cli.exit_codes import ExitCode
from tests.interfaces.command_line import Cli, CommandResult
from tests.interfaces.conftest import At
from tests.interfaces.server_thread import run_server

Inside = Callable[..., CommandResult]
SHOP = Path(__file__).parents[2] / "examples" / "shop"
MAIL = "name: mail\nrunner: command\noptions:\n  argv: [echo, {word}]\ntimeout: 10m\n"


@pytest.fixture
def ask(cli: Cli, inside: Inside, at: At) -> Inside:
    """A command, on the data folder of the test."""
    folder = cli.folder / ".longshore"
    return lambda *arguments: inside(*arguments, *at(folder))


def _stored(ask: Inside) -> bool:
    """Whether there is any definition; where there is not even a folder, there is none."""
    answer = ask("definitions", "list", "-o", "json")
    return answer.code != ExitCode.NOT_FOUND and answer.json["definitions"] != []


def test_the_definitions_of_files_are_stored_once_and_a_change_is_the_next_version(
    ask: Inside, cli: Cli
) -> None:
    file = cli.folder / "mail.yaml"
    file.write_text(MAIL.format(word="one"))
    first = ask("definitions", "apply", str(file))
    again = ask("definitions", "apply", str(file))
    file.write_text(MAIL.format(word="two"))
    changed = ask("definitions", "apply", str(file))
    old = ask("definitions", "show", "mail", "--version", "1", "-o", "json").json

    outcomes = [answer.out.splitlines()[1].split() for answer in (first, again, changed)]
    assert outcomes == [
        ["mail", "1", "new"],
        ["mail", "1", "unchanged"],
        ["mail", "2", "changed,", "was", "1"],
    ]
    assert old["options"] == {"argv": ["echo", "one"]}


def test_a_definition_that_is_shown_can_be_applied_again(ask: Inside, cli: Cli) -> None:
    ask("definitions", "apply", str(SHOP))
    shown = ask("definitions", "show", "import-feed")
    file = cli.folder / "again.yaml"
    file.write_text(shown.out)

    again = ask("definitions", "apply", str(file), "-o", "json").json

    assert shown.out.startswith("# version 1\n")
    assert yaml.safe_load(shown.out)["timeout"] == "10m"
    assert [one["version"] for one in again["definitions"]] == [1]


def test_everything_that_is_wrong_is_told_together_and_nothing_is_stored(
    ask: Inside, cli: Cli
) -> None:
    (cli.folder / "good.yaml").write_text(MAIL.format(word="one"))
    (cli.folder / "bad.yaml").write_text("definitions:\n  a:\n    runner: comand\n")

    answer = ask("definitions", "apply", str(cli.folder), str(cli.folder / "nowhere.yaml"))

    assert answer.code == ExitCode.USAGE
    assert "bad.yaml, line 3: definitions.a.runner" in answer.err
    assert "nowhere.yaml: the file does not exist" in answer.err
    assert not _stored(ask)


def test_files_can_be_checked_without_anything_being_stored(ask: Inside) -> None:
    answer = ask("definitions", "apply", str(SHOP), "--check")

    assert (answer.code, answer.out[:13]) == (0, "4 definitions")
    assert not _stored(ask)


def test_no_new_job_can_name_a_definition_that_was_deleted(ask: Inside, cli: Cli) -> None:
    ask("definitions", "apply", str(SHOP))
    job = cli.folder / "job.json"
    job.write_text(json.dumps({"tasks": [{"taskId": "a", "name": "import-feed"}]}))

    deleted = ask("definitions", "delete", "import-feed")
    again = ask("definitions", "delete", "import-feed")
    submitted = ask("submit", str(job))

    assert (deleted.code, again.code) == (0, ExitCode.NOT_FOUND)
    assert submitted.code == ExitCode.USAGE
    assert "no definition is called 'import-feed'" in submitted.err


def test_a_key_is_shown_once_works_and_is_gone_when_it_is_revoked(ask: Inside, cli: Cli) -> None:
    made = ask("keys", "create", "ci", "--scope", "read")
    listed = {key["name"]: key for key in ask("keys", "list", "-o", "json").json["keys"]}
    with run_server(cli.folder / ".longshore") as server:
        headers = {"x-api-key": made.out.strip()}
        known = httpx.get(f"{server.url}/v1/jobs", headers=headers)
        revoked = ask("keys", "revoke", listed["ci"]["id"])
        unknown = httpx.get(f"{server.url}/v1/jobs", headers=headers)

    assert made.code == revoked.code == 0
    assert listed["ci"]["scopes"] == ["read"]
    assert made.out.strip() not in ask("keys", "list").out + json.dumps(listed) + made.err
    assert (known.status_code, unknown.status_code) == (200, 401)


def test_a_key_needs_a_name_and_a_scope(ask: Inside) -> None:
    assert ask("keys", "create", "ci").code == ExitCode.USAGE
    assert ask("keys", "create", "", "--scope", "read").code == ExitCode.USAGE
    assert ask("keys", "create", "ci", "--scope", "everything").code == ExitCode.USAGE
    assert ask("keys", "revoke", "key-none").code == ExitCode.NOT_FOUND
