"""``longshore definitions …`` and ``keys …``, on a data folder and on a server."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
import yaml

from longshore.interfaces.cli.exit_codes import ExitCode
from tests.interfaces.command_line import TIMEOUT_S, Cli, CommandResult
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
    """Whether there is any definition; without a data folder there is none."""
    answer = ask("definitions", "list", "-o", "json")
    return answer.code != ExitCode.NOT_FOUND and answer.json["definitions"] != []


def test_applying_a_file_again_stores_nothing_and_a_change_stores_a_new_version(
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


def test_a_shown_definition_can_be_applied_again(ask: Inside, cli: Cli) -> None:
    ask("definitions", "apply", str(SHOP))
    shown = ask("definitions", "show", "import-feed")
    file = cli.folder / "again.yaml"
    file.write_text(shown.out)

    again = ask("definitions", "apply", str(file), "-o", "json").json

    assert shown.out.startswith("# version 1\n")
    assert yaml.safe_load(shown.out)["timeout"] == "10m"
    assert [definition["version"] for definition in again["definitions"]] == [1]


def test_all_problems_are_reported_together_and_nothing_is_stored(ask: Inside, cli: Cli) -> None:
    (cli.folder / "good.yaml").write_text(MAIL.format(word="one"))
    (cli.folder / "bad.yaml").write_text("definitions:\n  a:\n    runner: comand\n")

    answer = ask("definitions", "apply", str(cli.folder), str(cli.folder / "nowhere.yaml"))

    assert answer.code == ExitCode.USAGE
    assert "bad.yaml, line 3: definitions.a.runner" in answer.err
    assert "nowhere.yaml: the file does not exist" in answer.err
    assert not _stored(ask)


def test_check_validates_files_and_stores_nothing(ask: Inside) -> None:
    answer = ask("definitions", "apply", str(SHOP), "--check")

    assert (answer.code, answer.out[:13]) == (0, "4 definitions")
    assert not _stored(ask)


def test_a_new_job_cannot_use_a_deleted_definition(ask: Inside, cli: Cli) -> None:
    ask("definitions", "apply", str(SHOP))
    job = cli.folder / "job.json"
    job.write_text(json.dumps({"tasks": [{"taskId": "a", "name": "import-feed"}]}))

    deleted = ask("definitions", "delete", "import-feed")
    again = ask("definitions", "delete", "import-feed")
    submitted = ask("submit", str(job))

    assert (deleted.code, again.code) == (0, ExitCode.NOT_FOUND)
    assert submitted.code == ExitCode.USAGE
    assert "no definition is called 'import-feed'" in submitted.err


def test_a_job_file_or_a_built_in_name_in_place_of_a_definition_gives_a_hint(
    ask: Inside, cli: Cli
) -> None:
    ask("definitions", "apply", str(SHOP))
    job = cli.folder / "job.yaml"
    job.write_text("tasks: [{taskId: a, name: command}]")

    applied = ask("definitions", "apply", str(job))
    shown = ask("definitions", "show", "command")
    deleted = ask("definitions", "delete", "command")
    missing = cli("definitions", "show", "unknown")
    key = cli("keys", "revoke", "key-none")

    assert "this looks like a job file; use `longshore submit`" in applied.err
    assert shown.out.startswith("# built in\n")
    assert (deleted.code, missing.code) == (ExitCode.REFUSED, ExitCode.NOT_FOUND)
    assert "it is built in and cannot be deleted" in deleted.err
    assert missing.err == "longshore: no definition 'unknown'; see `longshore definitions list`\n"
    assert key.err == "longshore: no key 'key-none'; see `longshore keys list`\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--state", "foo"), "'--state': 'foo' is not one of 'running', 'completed'"),
        (("--limit", "many"), "'--limit': must be a whole number; see"),
        (("--limit", "0"), "'--limit': must be greater than or equal to 1; see"),
    ],
)
def test_an_invalid_option_is_explained_in_plain_words(
    ask: Inside, arguments: tuple[str, str], problem: str
) -> None:
    answer = ask("jobs", *arguments)

    assert answer.code == ExitCode.USAGE
    assert problem in answer.err


def test_a_key_is_shown_once_and_works_until_it_is_revoked(ask: Inside, cli: Cli) -> None:
    created = ask("keys", "create", "ci", "--scope", "read")
    listed = {key["name"]: key for key in ask("keys", "list", "-o", "json").json["keys"]}
    with run_server(cli.folder / ".longshore") as server:
        headers = {"x-api-key": created.out.strip()}
        before = httpx2.get(f"{server.url}/v1/jobs", headers=headers)
        revoked = ask("keys", "revoke", listed["ci"]["id"])
        after = httpx2.get(f"{server.url}/v1/jobs", headers=headers)

    assert created.code == revoked.code == 0
    assert listed["ci"]["scopes"] == ["read"]
    assert created.out.strip() not in ask("keys", "list").out + json.dumps(listed) + created.err
    assert (before.status_code, after.status_code) == (200, 401)


def test_a_key_needs_a_name_and_a_scope(ask: Inside) -> None:
    assert ask("keys", "create", "ci").code == ExitCode.USAGE
    assert ask("keys", "create", "", "--scope", "read").code == ExitCode.USAGE
    assert ask("keys", "create", "ci", "--scope", "everything").code == ExitCode.USAGE
    assert ask("keys", "revoke", "key-none").code == ExitCode.NOT_FOUND


def test_a_key_can_be_limited_to_definitions_and_queues(ask: Inside, at: At, cli: Cli) -> None:
    ask("definitions", "apply", str(SHOP))
    created = ask(
        *("keys", "create", "shop", "--scope", "submit", "--scope", "read"),
        *("--definitions", "mail-staff, price-list", "--queues", "default"),
    )
    admin = ask("keys", "create", "ann", "--scope", "admin", "--queues", "default")
    nothing = ask("keys", "create", "ann", "--scope", "read", "--definitions", " ,")
    (listed,) = [
        key for key in ask("keys", "list", "-o", "json").json["keys"] if key["name"] == "shop"
    ]

    assert created.code == 0
    assert (listed["definitions"], listed["queues"]) == (["mail-staff", "price-list"], ["default"])
    assert "mail-staff, price-list  default" in ask("keys", "list").out
    assert (admin.code, nothing.code) == (ExitCode.USAGE, ExitCode.USAGE)
    assert "cannot be limited" in admin.err
    assert "expected one or more names" in nothing.err
    with run_server(cli.folder / ".longshore") as server:
        url = ("--server", server.url)
        key = {"LONGSHORE_API_KEY": created.out.strip()}
        job = cli.folder / "job.yaml"
        job.write_text("tasks: [{taskId: a, name: mail-staff}]")
        allowed = cli("submit", str(job), *url, env=key)
        job.write_text("tasks: [{taskId: a, name: command, input: {argv: [id]}}]")
        refused = cli("submit", str(job), *url, env=key)

    assert allowed.code == 0
    assert refused.code == ExitCode.REFUSED
    assert "this key may only start tasks of the definitions mail-staff, price-list" in refused.err


def test_the_first_key_of_a_second_tenant_gives_a_warning(inside: Inside, cli: Cli) -> None:
    folder = ("--data-dir", str(cli.folder / ".longshore"))
    first, more, second, again = (
        inside("keys", "create", "a", "--scope", "read", "--tenant", tenant, *folder)
        for tenant in ("acme", "acme", "globex", "globex")
    )

    assert [answer.code for answer in (first, more, second, again)] == [0] * 4
    assert ["warning" in answer.err for answer in (first, more, second, again)] == [
        *(False, False),
        *(True, False),
    ]
    assert "2 tenants have keys" in second.err
    assert "threat-model.md" in second.err
    assert second.out.startswith("lsk_")
    with cli.start("up", "--port", "0") as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("  stop"):
            continue
        process.terminate()
        _, shown = process.communicate(timeout=TIMEOUT_S)
    assert "3 tenants have keys" in shown  # and the default one, whose key `up` makes
