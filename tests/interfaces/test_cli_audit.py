"""``longshore doctor --audit``: what is stored is held against what is promised."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from longshore.interfaces.cli import history_audit
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.history_audit import INVARIANT_TEXTS
from tests.interfaces.command_line import Cli, CommandResult, send_signal

Inside = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in which something was run."""
    cli = Cli(tmp_path_factory.mktemp("used"))
    file = cli.folder / "job.json"
    tasks: list[dict[str, Any]] = [
        {"taskId": "a", "name": "command", "input": {"argv": ["echo", "hello"]}},
        {"taskId": "b", "name": "command", "input": {"argv": ["true"]}, "dependsOn": ["a"]},
    ]
    file.write_text(json.dumps({"tasks": tasks}))
    assert cli("submit", "--wait", str(file)).code == 0
    return cli.folder / ".longshore"


@pytest.fixture
def folder(used: Path, tmp_path: Path) -> Path:
    shutil.copytree(used, tmp_path / "copy", ignore=shutil.ignore_patterns("wakeups", "workers"))
    return tmp_path / "copy"


def damage(folder: Path, sql: str) -> None:
    connection = apsw.Connection(str(folder / "longshore.db"))
    connection.execute(sql)
    connection.close()


def test_a_store_in_order_passes(inside: Inside, folder: Path) -> None:
    answer = inside("doctor", "--audit", "--data-dir", str(folder))

    (line,) = [line for line in answer.out.splitlines() if line.startswith("history")]
    assert answer.code == 0
    assert line.split()[1] == "ok"
    assert "1 job, 2 tasks, " in line
    assert "hold" in line


def test_damage_fails_and_says_where_it_is_what_it_is_and_what_to_do(
    inside: Inside, folder: Path
) -> None:
    damage(folder, "DELETE FROM events WHERE type = 'Task Processing Started' AND sequence = 2")

    answer = inside("doctor", "--audit", "--data-dir", str(folder))

    lines = answer.out.splitlines()
    found = next(line.split() for line in lines if "event 2 is missing from its history" in line)
    assert answer.code == ExitCode.FAILED
    assert "nothing was changed" in answer.out
    assert found[0] == "5"
    assert found[1].startswith("job-")
    (advice,) = [line for line in lines if line.startswith(f"5 {INVARIANT_TEXTS[5].name}")]
    assert advice.endswith(INVARIANT_TEXTS[5].advice)


def test_a_program_gets_every_finding_with_its_number(inside: Inside, folder: Path) -> None:
    damage(folder, "DELETE FROM output")

    answer = inside("doctor", "--audit", "-o", "json", "--data-dir", str(folder))

    audit = answer.json["audit"]
    assert (answer.code, answer.json["ok"]) == (ExitCode.FAILED, False)
    assert (audit["jobs"], audit["tasks"], audit["counts"]) == (1, 2, {"8": 1})
    (finding,) = audit["findings"]
    assert finding["invariant"] == 8
    assert finding["name"] == INVARIANT_TEXTS[8].name
    assert finding["subject"].endswith("_a")
    assert "its outcome says 1" in finding["text"]


def test_of_many_findings_the_first_are_shown_and_the_others_counted(
    inside: Inside, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_audit, "_SHOWN", 3)
    damage(folder, "UPDATE tasks SET queue = 'x', version = 99, tenant = 'y'")

    answer = inside("doctor", "--audit", "--data-dir", str(folder))

    assert answer.out.count("it is found by") == 3
    assert "and 3 more: `longshore doctor --audit -o json`" in answer.out


def test_only_who_asks_for_it_gets_an_audit(inside: Inside, folder: Path) -> None:
    damage(folder, "DELETE FROM output")

    answer = inside("doctor", "-o", "json", "--data-dir", str(folder))

    assert answer.code == 0
    assert "audit" not in answer.json
    assert "history" not in [check["name"] for check in answer.json["checks"]]


def test_a_place_where_nothing_has_happened_has_no_history(inside: Inside, tmp_path: Path) -> None:
    answer = inside("doctor", "--audit", "-o", "json", "--data-dir", str(tmp_path / "none"))

    assert (answer.code, answer.json["audit"]) == (0, None)
    assert list(tmp_path.iterdir()) == []


def test_a_store_of_an_older_version_is_not_audited_before_it_was_used(
    inside: Inside, folder: Path
) -> None:
    damage(folder, "PRAGMA user_version = 0")

    answer = inside("doctor", "--audit", "-o", "json", "--data-dir", str(folder))

    statuses = {check["name"]: check["status"] for check in answer.json["checks"]}
    assert (statuses["schema"], statuses["history"], answer.json["audit"]) == ("warn", "warn", None)


def test_what_cannot_be_read_in_the_middle_fails(inside: Inside, folder: Path) -> None:
    damage(folder, "DROP TABLE messages; CREATE TABLE messages (queue TEXT, visible_us INTEGER)")

    answer = inside("doctor", "--audit", "--data-dir", str(folder))

    assert answer.code == ExitCode.FAILED
    assert "cannot be read: no such column" in answer.out


def test_an_audit_is_right_while_a_worker_is_at_work(cli: Cli, inside: Inside) -> None:
    place = str(cli.folder / ".longshore")
    go = cli.make_fifo("go")
    argv = ["sh", "-c", f"echo begun; cat {go}"]
    file = cli.folder / "job.json"
    file.write_text(
        json.dumps({"tasks": [{"taskId": "a", "name": "command", "input": {"argv": argv}}]})
    )
    with cli.start("worker") as worker:
        assert cli("submit", str(file)).code == 0
        with go.open("w"):  # opens when the task reads from it
            answer = inside("doctor", "--audit", "-o", "json", "--data-dir", place)
        send_signal(worker, signal.SIGTERM)

    assert answer.code == 0
    assert answer.json["audit"]["findings"] == []
    assert answer.json["audit"]["events"] >= 3


def test_on_a_terminal_it_shows_how_far_it_is_and_leaves_nothing_of_that(
    cli: Cli, used: Path
) -> None:
    with cli.terminal("doctor", "--audit", "--data-dir", str(used)) as terminal:
        code = terminal.wait()

    assert code == 0
    assert "auditing" in terminal.text
    assert "history" in terminal.text.rpartition("CHECK")[2]
