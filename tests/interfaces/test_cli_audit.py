"""``longshore doctor --audit``: checks everything that is stored."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from longshore.interfaces.cli.commands import doctor
from longshore.interfaces.cli.commands.doctor import INVARIANT_TEXTS
from longshore.interfaces.cli.exit_codes import ExitCode
from tests.interfaces.command_line import Cli, CommandResult, send_signal

Inside = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a finished job."""
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


def test_a_valid_store_passes_the_audit(inside: Inside, folder: Path) -> None:
    answer = inside("doctor", "--audit", "--data-dir", str(folder))

    (line,) = [line for line in answer.out.splitlines() if line.startswith("history")]
    assert answer.code == 0
    assert line.split()[1] == "ok"
    assert "1 job, 2 tasks, " in line
    assert "no problems found" in line


def test_damage_fails_with_its_location_and_advice(inside: Inside, folder: Path) -> None:
    damage(folder, "UPDATE tasks SET sequence = sequence + 1")

    answer = inside("doctor", "--audit", "--data-dir", str(folder))

    lines = answer.out.splitlines()
    row = next(line.split() for line in lines if "event 1 is missing from its history" in line)
    assert answer.code == ExitCode.FAILED
    assert "nothing was changed" in answer.out
    assert row[0] == "5"
    assert row[1].startswith("job-")
    (advice,) = [line for line in lines if line.startswith(f"5 {INVARIANT_TEXTS[5][0]}")]
    assert advice.endswith(INVARIANT_TEXTS[5][1])


def test_json_contains_every_finding_with_its_invariant(inside: Inside, folder: Path) -> None:
    damage(folder, "DELETE FROM output")

    answer = inside("doctor", "--audit", "-o", "json", "--data-dir", str(folder))

    audit = answer.json["audit"]
    assert (answer.code, answer.json["ok"]) == (ExitCode.FAILED, False)
    assert (audit["jobs"], audit["tasks"], audit["counts"]) == (1, 2, {"8": 1})
    (finding,) = audit["findings"]
    assert finding["invariant"] == 8
    assert finding["name"] == INVARIANT_TEXTS[8][0]
    assert finding["subject"].endswith("_a")
    assert "its outcome says 1" in finding["text"]


def test_the_first_findings_are_shown_and_the_others_counted(
    inside: Inside, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_SHOWN_FINDINGS", 3)
    damage(folder, "UPDATE tasks SET queue = 99, lane = 99")

    answer = inside("doctor", "--audit", "--data-dir", str(folder))

    assert answer.out.count("it is found by") == 3
    assert "and 1 more: `longshore doctor --audit -o json`" in answer.out


def test_the_audit_runs_only_on_request(inside: Inside, folder: Path) -> None:
    damage(folder, "DELETE FROM output")

    answer = inside("doctor", "-o", "json", "--data-dir", str(folder))

    assert answer.code == 0
    assert "audit" not in answer.json
    assert "history" not in [check["name"] for check in answer.json["checks"]]


def test_an_empty_folder_has_no_history(inside: Inside, tmp_path: Path) -> None:
    answer = inside("doctor", "--audit", "-o", "json", "--data-dir", str(tmp_path / "none"))

    assert (answer.code, answer.json["audit"]) == (0, None)
    assert list(tmp_path.iterdir()) == []


def test_a_store_with_an_older_schema_is_not_audited(inside: Inside, folder: Path) -> None:
    damage(folder, "PRAGMA user_version = 0")

    answer = inside("doctor", "--audit", "-o", "json", "--data-dir", str(folder))

    statuses = {check["name"]: check["status"] for check in answer.json["checks"]}
    assert (statuses["schema"], statuses["history"], answer.json["audit"]) == ("warn", "warn", None)


def test_an_unreadable_row_fails_the_audit(inside: Inside, folder: Path) -> None:
    damage(folder, "DROP TABLE output; CREATE TABLE output (task INTEGER)")

    answer = inside("doctor", "--audit", "--data-dir", str(folder))

    assert answer.code == ExitCode.FAILED
    assert "cannot be read: no such column" in answer.out


def test_an_audit_passes_while_a_worker_runs(cli: Cli, inside: Inside) -> None:
    folder = str(cli.folder / ".longshore")
    go = cli.make_fifo("go")
    argv = ["sh", "-c", f"echo begun; cat {go}"]
    file = cli.folder / "job.json"
    file.write_text(
        json.dumps({"tasks": [{"taskId": "a", "name": "command", "input": {"argv": argv}}]})
    )
    with cli.start("worker") as worker:
        assert cli("submit", str(file)).code == 0
        with go.open("w"):  # opens when the task reads from it
            answer = inside("doctor", "--audit", "-o", "json", "--data-dir", folder)
        send_signal(worker, signal.SIGTERM)

    assert answer.code == 0
    assert answer.json["audit"]["findings"] == []
    assert answer.json["audit"]["events"] >= 3


def test_on_a_terminal_a_progress_bar_is_shown_and_removed(cli: Cli, used: Path) -> None:
    with cli.terminal("doctor", "--audit", "--data-dir", str(used)) as terminal:
        code = terminal.wait()

    assert code == 0
    assert "auditing" in terminal.text
    assert "history" in terminal.text.rpartition("CHECK")[2]
