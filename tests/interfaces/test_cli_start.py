"""Starting the command line: help, version, options, and how errors are printed."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore import errors
from longshore.errors import LongshoreError, TaskFailedError
from longshore.interfaces.cli.exit_codes import ExitCode, exit_code_of, wants_json
from longshore.interfaces.cli.main import COMMANDS, main
from tests.interfaces.command_line import LONGSHORE, SCRIPT, Cli

HEAVY = ("rich", "pydantic", "apsw", "asyncio", "msgspec", "yaml")


def test_help_takes_less_than_a_fifth_of_a_second_of_cpu() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)

    subprocess.run([*LONGSHORE, "--help"], stdout=subprocess.DEVNULL, check=True)

    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 0.2


def test_help_imports_nothing_heavy() -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "longshore", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )

    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}

    assert "longshore.interfaces.cli.main" in imported
    assert {name for name in imported if name.partition(".")[0] in HEAVY} == set()


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("help",)])
def test_help_lists_every_command_and_every_exit_code(cli: Cli, arguments: tuple[str]) -> None:
    answer = cli(*arguments)

    assert answer.code == 0
    lines = {line.split()[0]: line for line in answer.out.splitlines() if line.startswith("  ")}
    words = [name.split()[:2] for name in COMMANDS]
    assert [path for path in words if path[-1] not in lines.get(path[0], "")] == []
    assert [code for code in ExitCode if code.meaning not in answer.out] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_examples(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code = main([*name.split(), "--help"])

    shown = capsys.readouterr().out
    assert code == 0
    assert shown.startswith(f"Usage: longshore {name} ")
    assert f"longshore {name}" in shown.partition("Examples:")[2]
    assert "--data-dir" in shown


def test_script_and_module_are_the_same_program(cli: Cli) -> None:
    script = subprocess.run([SCRIPT, "--version"], capture_output=True, text=True, check=True)

    module = cli("--version")

    assert script.stdout == module.out
    assert module.out.startswith("longshore 0.")


def test_a_misspelt_command_gets_a_suggestion(cli: Cli) -> None:
    answer = cli("job5")

    assert answer.code == ExitCode.USAGE
    assert "longshore job" in answer.err
    assert answer.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", "--limit", "0"),
        ("jobs", "--state", "sideways"),
        ("jobs", "--nonsense"),
        ("--nonsense", "jobs"),
        ("job",),
        ("run",),
        ("run", "--timeout", "soon", "--", "true"),
        ("jobs", "--tenant", "two words"),
        ("worker", "--concurrency", "0"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    code = main(arguments)

    shown = capsys.readouterr()
    assert code == ExitCode.USAGE
    assert shown.err.startswith("longshore: ")
    assert len(shown.err.splitlines()) == 1
    assert shown.out == ""


@pytest.mark.parametrize("before", [True, False])
def test_global_options_can_be_written_before_or_after_the_command(cli: Cli, before: bool) -> None:
    options = ("--data-dir", "elsewhere", "--tenant=acme")
    command = ("settings", "-o", "json")

    answer = cli(*options, *command) if before else cli(*command, *options)

    rows = {row["name"]: (row["value"], row["origin"]) for row in answer.json}
    assert rows["data_dir"] == ("elsewhere", "flag")
    assert rows["tenant"] == ("acme", "flag")


def test_an_option_after_the_command_replaces_the_same_option_before_it(cli: Cli) -> None:
    assert cli("-o", "json", "settings", "-o", "table").out.startswith("SETTING")
    assert cli("-o", "table", "settings", "-o", "json").json


@pytest.mark.parametrize("name", ["jobs", "logs"])
def test_reading_from_a_missing_folder_does_not_create_it(cli: Cli, name: str) -> None:
    rest = () if name == "jobs" else ("job-a",)

    answer = cli(name, *rest)

    assert answer.code == ExitCode.NOT_FOUND
    assert "longshore run -- echo hello" in answer.err
    assert list(cli.folder.iterdir()) == []


def test_errors_are_json_if_json_is_requested(cli: Cli) -> None:
    answer = cli("job", "job-nix", "-o", "json")

    error = json.loads(answer.err)["error"]
    assert (error["type"], error["exitCode"]) == ("NotFound", ExitCode.NOT_FOUND)
    assert "no data folder" in error["message"]
    assert answer.out == ""


def test_every_wrong_setting_is_listed(cli: Cli) -> None:
    wrong = {"LONGSHORE_WORKER_CONCURRENCY": "many", "LONGSHORE_LOG_LEVEL": "loud"}

    answer = cli("jobs", "-o", "json", env=wrong)

    problems = json.loads(answer.err)["error"]["problems"]
    assert answer.code == ExitCode.USAGE
    assert {problem["message"].partition(":")[0] for problem in problems} == {
        "worker.concurrency",
        "log_level",
    }


def test_a_damaged_store_is_named_and_not_changed(cli: Cli) -> None:
    database = cli.folder / ".longshore" / "longshore.db"
    database.parent.mkdir()
    database.write_bytes(b"this is not a database, despite its name" * 100)

    answer = cli("jobs")

    assert answer.code == ExitCode.BACKEND
    assert str(database) in answer.err
    assert "Traceback" not in answer.err
    assert database.read_bytes().startswith(b"this is not a database")


def test_a_folder_that_cannot_be_used_is_named(cli: Cli) -> None:
    (cli.folder / "file").write_text("")

    answer = cli("run", "--data-dir", "file/below", "--", "true")

    assert answer.code == ExitCode.BACKEND
    assert "file/below" in answer.err
    assert len(answer.err.splitlines()) == 1


def test_a_closed_output_pipe_prints_no_error(cli: Cli) -> None:
    gone, ours = os.pipe()
    os.close(gone)

    ended = subprocess.run(
        [*LONGSHORE, "settings"], cwd=cli.folder, stdout=ours, stderr=subprocess.PIPE, check=False
    )

    os.close(ours)
    assert ended.returncode == ExitCode.BROKEN_PIPE
    assert ended.stderr == b""


def _leaves(kind: type[LongshoreError]) -> Iterator[type[LongshoreError]]:
    below = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    if not below:
        yield kind
    for child in below:
        yield from _leaves(child)


@pytest.mark.parametrize("kind", list(_leaves(LongshoreError)))
def test_every_error_has_its_exit_code(kind: type[LongshoreError]) -> None:
    code = exit_code_of(kind.__new__(kind))

    if issubclass(kind, TaskFailedError):
        assert code is ExitCode.FAILED
    else:
        assert code in (ExitCode.USAGE, ExitCode.NOT_FOUND, ExitCode.REFUSED, ExitCode.BACKEND)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["jobs", "-o", "json"], True),
        (["jobs", "--output=json"], True),
        (["jobs", "-ojson"], True),
        (["jobs", "-o", "table"], False),
        (["jobs", "-o"], False),
        (["run", "--", "cmd", "-o", "json"], False),
    ],
)
def test_a_request_for_json_is_recognised_before_the_command_line_is_parsed(
    arguments: list[str], expected: bool
) -> None:
    assert wants_json(arguments) is expected


def test_logs_go_to_stderr_as_json_lines_where_there_is_no_terminal(cli: Cli) -> None:
    answer = cli("run", "-v", "--", "echo", "hello")

    records = [json.loads(line) for line in answer.err.splitlines()]
    assert answer.out == "hello\n"
    assert "job.accepted" in {record["event"] for record in records}
    assert all({"time", "level", "logger"} <= set(record) for record in records)


def test_without_verbose_nothing_is_logged(cli: Cli) -> None:
    answer = cli("run", "--", "true")

    assert (answer.code, answer.out, answer.err) == (0, "", "")


def test_a_secret_in_a_log_record_is_masked() -> None:
    code = (
        "import logging; from longshore.interfaces.cli import log_records;"
        "log_records.configure_logging(level=logging.INFO, style='{}');"
        "logging.getLogger('longshore.x').info("
        "'call.failed', extra={{'error': 'password=hunter2 \"quoted\"'}})"
    )

    shown = [
        subprocess.run(
            [sys.executable, "-c", code.format(style)], capture_output=True, text=True, check=True
        ).stderr
        for style in ("json", "text")
    ]

    assert json.loads(shown[0])["event"] == "call.failed"
    assert "hunter2" not in "".join(shown)


def test_settings_are_listed_with_the_origin_of_each_value(cli: Cli) -> None:
    Path(cli.folder / "longshore.toml").write_text("[worker]\nconcurrency = 7\n")

    answer = cli("settings", "--tenant", "acme", env={"LONGSHORE_APP": "shop"})

    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in answer.out.splitlines()[1:]}
    assert rows["worker.concurrency"] == ["7", "longshore.toml"]
    assert rows["app"] == ["shop", "LONGSHORE_APP in the environment"]
    assert rows["tenant"] == ["acme", "flag"]
    assert rows["retry.max_attempts"] == ["3", "default"]


@pytest.mark.parametrize(
    "arguments",
    [("job", b"\xff\xfe"), ("run", "--", b"\xff"), ("-o", "json", "jobs", "--name", b"caf\xe9")],
)
def test_an_argument_that_is_not_utf_8_is_refused(
    cli: Cli, arguments: tuple[str | bytes, ...]
) -> None:
    ended = subprocess.run(
        [*LONGSHORE, *arguments], cwd=cli.folder, env=cli.environment, capture_output=True
    )

    assert ended.returncode == ExitCode.USAGE
    assert f"argument {len(arguments)} is not valid UTF-8" in ended.stderr.decode()
    assert not list(cli.folder.iterdir())


@pytest.mark.parametrize(
    ("closed", "printed"),
    [("<&-", b"out\n"), (">&-", b""), ("2>&-", b"out\n"), ("<&- >&- 2>&-", b"")],
)
def test_a_closed_standard_stream_is_like_an_empty_one(
    cli: Cli, closed: str, printed: bytes
) -> None:
    quiet = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *LONGSHORE, "run", "--", "sh", "-c", "echo out"],
        cwd=cli.folder,
        env=cli.environment,
        capture_output=True,
    )

    assert quiet.returncode == 0
    assert quiet.stdout == printed
    assert b"bug" not in quiet.stderr
    assert json.loads(cli("jobs", "-o", "json").out)["jobs"][0]["status"] == "completed"


@pytest.mark.parametrize(
    "arguments",
    [
        ("logs", "job-a", "--attempt", "1" + 30 * "0"),
        ("trace", "job-a", "--attempt", "1" + 30 * "0"),
        ("definitions", "show", "a", "--version", "1" + 30 * "0"),
        ("budget", "add", "--tokens", "1" + 30 * "0"),
    ],
)
def test_a_number_that_no_store_holds_is_refused(cli: Cli, arguments: tuple[str, ...]) -> None:
    answer = cli(*arguments)

    assert answer.code == ExitCode.USAGE
    assert "must be less than or equal to" in answer.err
