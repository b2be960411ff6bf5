"""``longshore doctor``: says what is right and what is not, and changes nothing."""

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from longshore.adapters.sqlite.store_file import migrations
from longshore.interfaces.cli.exit_codes import ExitCode
from tests.interfaces.command_line import Cli, CommandResult, send_signal

Inside = Callable[..., CommandResult]


@pytest.fixture
def checks(cli: Cli, inside: Inside) -> Callable[[], dict[str, Any]]:
    """The marks by name, and the exit code under "code"."""

    def run() -> dict[str, Any]:
        answer = inside("doctor", "-o", "json", "--data-dir", str(cli.folder / ".longshore"))
        found = {check["name"]: check["status"] for check in answer.json["checks"]}
        # Nobody has given credentials for agents here; it has a test of its own.
        assert found.pop("agents") == "warn"
        assert answer.json["ok"] is ("fail" not in found.values())
        return {**found, "code": answer.code}

    return run


def _submit(cli: Cli, inside: Inside) -> None:
    file = cli.folder / "job.json"
    file.write_text(json.dumps({"tasks": [{"taskId": "a", "name": "command"}]}))
    inside("submit", str(file), "--data-dir", str(cli.folder / ".longshore"))


def test_it_says_whether_agents_can_be_run(
    cli: Cli, inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_agents() -> dict[str, Any]:
        answer = inside("doctor", "-o", "json", "--data-dir", str(cli.folder / ".longshore"))
        (found,) = (check for check in answer.json["checks"] if check["name"] == "agents")
        return dict(found)

    without = of_agents()
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-of-nobody")
    given = of_agents()

    assert without["status"] == "warn"
    assert "ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN" in without["remedy"]
    assert given["status"] == "ok"
    assert "ANTHROPIC_API_KEY" in given["detail"]
    assert "sk-ant" not in json.dumps(given)


def test_a_place_where_nothing_has_happened_is_fine_and_stays_empty(
    cli: Cli, checks: Callable[[], dict[str, Any]]
) -> None:
    found = checks()

    assert set(found.values()) == {"ok", 0}
    assert {"versions", "sqlite", "data folder", "disk", "clock", "store"} <= set(found)
    assert list(cli.folder.iterdir()) == []


def test_a_store_that_was_used_is_checked_through(cli: Cli) -> None:
    cli("run", "--", "true")

    answer = cli("doctor")

    rows = {line.split("  ")[0]: line for line in answer.out.splitlines()[1:]}
    assert answer.code == 0
    assert rows["schema"].split() == ["schema", "ok", str(migrations()[-1][0])]
    assert "quick check passed" in rows["integrity"]
    assert {"workers", "wakeups", "queues"} <= set(rows)


def test_work_without_a_worker_is_a_warning(
    cli: Cli, inside: Inside, checks: Callable[[], dict[str, Any]]
) -> None:
    _submit(cli, inside)

    found = checks()

    assert (found["queue default"], found["code"]) == ("warn", 0)


def test_a_worker_at_work_is_seen_and_one_that_was_killed_too(
    cli: Cli, checks: Callable[[], dict[str, Any]]
) -> None:
    with cli.start("worker") as worker:
        worker.stdout.readline()
        while (alive := checks())["workers"] != "ok":
            continue  # it says that it serves a moment before it is there
        send_signal(worker, signal.SIGKILL)
    # It is present until its keeper has gone too.
    while "ok" in ((dead := checks())["workers"], dead["wakeups"]):
        continue

    assert (alive["workers"], alive["wakeups"]) == ("ok", "ok")
    assert (dead["workers"], dead["wakeups"]) == ("warn", "warn")


def test_a_damaged_store_fails_and_is_not_touched(
    cli: Cli, inside: Inside, checks: Callable[[], dict[str, Any]]
) -> None:
    _submit(cli, inside)
    database = cli.folder / ".longshore" / "longshore.db"
    pages = bytearray(database.read_bytes())
    pages[4096:] = b"\x5a" * (len(pages) - 4096)
    database.write_bytes(pages)

    found = checks()

    assert (found["integrity"], found["code"]) == ("fail", ExitCode.FAILED)
    assert database.read_bytes() == bytes(pages)


def test_a_store_of_a_newer_version_fails(
    cli: Cli, inside: Inside, checks: Callable[[], dict[str, Any]]
) -> None:
    _submit(cli, inside)
    database = cli.folder / ".longshore" / "longshore.db"
    pages = bytearray(database.read_bytes())
    # Where SQLite keeps user_version.
    pages[60:64] = (99).to_bytes(4, "big")
    database.write_bytes(pages)

    found = checks()

    assert (found["schema"], found["code"]) == ("fail", ExitCode.FAILED)


def test_wrong_settings_fail(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSHORE_WORKER_CONCURRENCY", "many")

    answer = inside("doctor")

    assert answer.code == ExitCode.FAILED
    assert "worker.concurrency" in answer.out
