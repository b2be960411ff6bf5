"""``longshore doctor``: checks everything and changes nothing."""

import contextlib
import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from longshore.adapters.sqlite import inspection
from longshore.adapters.sqlite.store_file import migrations
from longshore.adapters.sqlite.write_lock import WriteLock
from longshore.interfaces.cli.exit_codes import ExitCode
from tests.interfaces.command_line import TIMEOUT_S, Cli, CommandResult, needs_mounts, send_signal

Inside = Callable[..., CommandResult]


@pytest.fixture
def checks(cli: Cli, inside: Inside) -> Callable[[], dict[str, Any]]:
    """The status of each check by name, and the exit code as "code"."""

    def run() -> dict[str, Any]:
        answer = inside("doctor", "-o", "json", "--data-dir", str(cli.folder / ".longshore"))
        statuses = {check["name"]: check["status"] for check in answer.json["checks"]}
        assert answer.json["ok"] is ("fail" not in statuses.values())
        return {**statuses, "code": answer.code}

    return run


def _submit(cli: Cli, inside: Inside) -> None:
    file = cli.folder / "job.json"
    file.write_text(json.dumps({"tasks": [{"taskId": "a", "name": "command"}]}))
    inside("submit", str(file), "--data-dir", str(cli.folder / ".longshore"))


def test_doctor_checks_whether_agents_can_run(
    cli: Cli, inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    def agent_check() -> dict[str, Any]:
        answer = inside("doctor", "-o", "json", "--data-dir", str(cli.folder / ".longshore"))
        (agents,) = (check for check in answer.json["checks"] if check["name"] == "agents")
        return dict(agents)

    without = agent_check()
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-of-a-test")
    with_key = agent_check()

    assert (without["status"], "not configured" in without["detail"]) == ("ok", True)
    assert "ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN" in without["remedy"]
    assert with_key["status"] == "ok"
    assert "ANTHROPIC_API_KEY" in with_key["detail"]
    assert "sk-ant" not in json.dumps(with_key)


def test_an_empty_folder_passes_and_stays_empty(
    cli: Cli, checks: Callable[[], dict[str, Any]]
) -> None:
    statuses = checks()

    assert set(statuses.values()) == {"ok", 0}
    assert {"versions", "sqlite", "data folder", "disk", "clock", "store"} <= set(statuses)
    assert list(cli.folder.iterdir()) == []


def test_every_part_of_a_used_store_is_checked(cli: Cli) -> None:
    cli("run", "--", "true")

    answer = cli("doctor")

    rows = {line.split("  ")[0]: line for line in answer.out.splitlines()[1:]}
    assert answer.code == 0
    assert rows["schema"].split() == ["schema", "ok", "version", str(migrations()[-1][0])]
    assert "quick check passed" in rows["integrity"]
    assert "1 ended job, kept for 90 d" in rows["retention"]
    assert "the oldest ended" in rows["retention"]
    assert {"workers", "wakeups", "queues"} <= set(rows)


def test_ready_tasks_without_a_worker_are_a_warning(
    cli: Cli, inside: Inside, checks: Callable[[], dict[str, Any]]
) -> None:
    _submit(cli, inside)

    statuses = checks()

    assert (statuses["queue default"], statuses["code"]) == ("warn", 0)


def test_running_and_killed_workers_are_reported(
    cli: Cli, checks: Callable[[], dict[str, Any]]
) -> None:
    with cli.start("worker") as worker:
        worker.stdout.readline()
        while (alive := checks())["workers"] != "ok":
            continue  # it prints its first line before it registers
        send_signal(worker, signal.SIGKILL)
    # It counts as live until the children that hold its lock file have ended too.
    while "ok" in ((dead := checks())["workers"], dead["wakeups"]):
        continue

    assert (alive["workers"], alive["wakeups"]) == ("ok", "ok")
    assert (dead["workers"], dead["wakeups"]) == ("warn", "warn")


def test_a_damaged_store_fails_and_is_not_changed(
    cli: Cli, inside: Inside, checks: Callable[[], dict[str, Any]]
) -> None:
    _submit(cli, inside)
    database = cli.folder / ".longshore" / "longshore.db"
    pages = bytearray(database.read_bytes())
    pages[4096:] = b"\x5a" * (len(pages) - 4096)
    database.write_bytes(pages)

    statuses = checks()

    assert (statuses["integrity"], statuses["code"]) == ("fail", ExitCode.FAILED)
    assert database.read_bytes() == bytes(pages)


@needs_mounts
@pytest.mark.parametrize("make_unusable", ["fill", "mount -o remount,ro .longshore"])
def test_a_full_or_read_only_disk_is_not_called_damage(cli: Cli, make_unusable: str) -> None:
    # A restore for lack of free space would replace good data by older data.
    with cli.on_small_disk(
        f"$LONGSHORE run -- true; {make_unusable}; $LONGSHORE doctor -o json"
    ) as doctor:
        out, _ = doctor.communicate(timeout=TIMEOUT_S)

    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    assert doctor.returncode == ExitCode.FAILED
    assert checks["integrity"]["status"] == "fail"
    assert "cannot be read now" in checks["integrity"]["detail"]
    assert not {"restore", "damaged:"} & set(checks["integrity"]["detail"].split())
    assert "schema" not in checks


@needs_mounts
def test_a_disk_without_room_fails_the_test_write_and_nothing_else(cli: Cli) -> None:
    # The store can be read, and a page may even fit.
    leave_room = "dd if=/dev/zero of=.longshore/filler bs=4k count=$1 status=none"
    with cli.on_small_disk(
        f"""
        $LONGSHORE run -- true
        free=$(stat -f -c %a .longshore)
        set -- $((free - 100)); {leave_room}
        exec $LONGSHORE doctor -o json
        """
    ) as doctor:
        out, _ = doctor.communicate(timeout=TIMEOUT_S)

    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    assert {name for name, check in checks.items() if check["status"] == "fail"} == {"write"}
    assert "disk full: " in checks["write"]["detail"]


def test_a_process_that_was_stopped_while_it_writes_fails_the_test_write(
    cli: Cli, inside: Inside, checks: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _submit(cli, inside)
    assert checks()["write"] == "ok"
    monkeypatch.setattr(inspection, "_WRITE_TIMEOUT_S", 0.1)

    with contextlib.closing(WriteLock(cli.folder / ".longshore")) as lock, lock:
        assert checks()["write"] == "fail"
    assert checks()["write"] == "ok"


def test_a_store_of_a_newer_version_fails(
    cli: Cli, inside: Inside, checks: Callable[[], dict[str, Any]]
) -> None:
    _submit(cli, inside)
    database = cli.folder / ".longshore" / "longshore.db"
    pages = bytearray(database.read_bytes())
    # Where SQLite keeps user_version.
    pages[60:64] = (99).to_bytes(4, "big")
    database.write_bytes(pages)

    statuses = checks()

    assert (statuses["schema"], statuses["code"]) == ("fail", ExitCode.FAILED)


def test_wrong_settings_fail(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSHORE_WORKER_CONCURRENCY", "many")

    answer = inside("doctor")

    assert answer.code == ExitCode.FAILED
    assert "worker.concurrency" in answer.out
