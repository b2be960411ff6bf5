"""``longshore submit``: jobs from files, their errors, and waiting for their end."""

import itertools
import json
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from longshore.core.tasks.states import JobState
from longshore.execution.host.registry import FileWorkerRegistry
from longshore.interfaces.cli.exit_codes import ExitCode
from tests.interfaces.command_line import TIMEOUT_S, Cli, CommandResult, send_signal

Inside = Callable[..., CommandResult]
DIAMOND = """
name: diamond
definitions:
  - name: say
    runner: command
    timeout: 30s
    retry: {maxAttempts: 2, base: 10ms}
    options: {argv: [sh, -c, 'echo "$LONGSHORE_ATTEMPT_TASK" >> traces', say]}
    overridable: [cwd]
tasks:
  - {taskId: top, name: say, input: {cwd: FOLDER}}
  - {taskId: left, name: say, dependsOn: [top], input: {cwd: FOLDER}}
  - {taskId: right, name: say, dependsOn: [top], input: {cwd: FOLDER}}
  - {taskId: end, name: say, dependsOn: [left, right], input: {cwd: FOLDER}}
"""


def _write(cli: Cli, text: str) -> str:
    file = cli.folder / "job.yaml"
    file.write_text(text.replace("FOLDER", str(cli.folder)))
    return str(file)


@pytest.fixture
def submit(cli: Cli, inside: Inside) -> Callable[..., CommandResult]:
    """Submits a text as a file."""

    def run(text: str, *arguments: str) -> CommandResult:
        folder_options = ("--data-dir", str(cli.folder / ".longshore"))
        return inside("submit", _write(cli, text), *arguments, *folder_options)

    return run


def test_waiting_runs_the_job_until_it_has_ended(cli: Cli) -> None:
    answer = cli("submit", _write(cli, DIAMOND), "--wait", "--request-id", "d")

    (job,) = cli.jobs()
    ran = [line.partition("_")[2] for line in (cli.folder / "traces").read_text().splitlines()]
    assert answer.code == 0
    assert (ran[0], sorted(ran[1:3]), ran[3:]) == ("top", ["left", "right"], ["end"])
    assert job.id in answer.out
    assert "4 of 4 tasks completed" in answer.out
    assert "left: started" in answer.err
    assert "\x1b" not in answer.out + answer.err


def test_a_failed_job_exits_with_1_and_names_its_failed_tasks(cli: Cli) -> None:
    text = "{tasks: [{taskId: a, name: command, input: {argv: [sh, -c, exit 7]}}]}"

    answer = cli("submit", "-", "--wait", stdin=text)

    assert answer.code == ExitCode.FAILED
    assert "a: the process ended with exit code 7" in answer.out
    assert "see: longshore why job-" in answer.out


@pytest.mark.parametrize(("queue", "options"), [("default", ""), ("mial", " --queue mial")])
def test_the_next_step_is_a_worker_for_the_queues_of_the_job(
    submit: Callable[..., CommandResult], queue: str, options: str
) -> None:
    text = f"{{tasks: [{{taskId: a, name: command, queue: {queue}, input: {{argv: ['true']}}}}]}}"

    answer = submit(text)

    assert f"longshore worker --burst{options}; longshore job job-" in answer.out


def test_a_job_that_has_ended_needs_no_worker(cli: Cli) -> None:
    cli("submit", _write(cli, DIAMOND), "--wait", "--request-id", "d")

    again = cli("submit", _write(cli, DIAMOND), "--request-id", "d")

    assert "accepted before, now completed" in again.out
    assert "longshore worker" not in again.out


def test_a_terminal_shows_the_progress_of_the_job(cli: Cli) -> None:
    with cli.terminal("submit", _write(cli, DIAMOND), "--wait") as terminal:
        code = terminal.wait()

    assert code == 0
    assert "diamond" in terminal.text
    assert "4/4" in terminal.text


def test_without_waiting_the_job_is_only_accepted(submit: Callable[..., CommandResult]) -> None:
    answer = submit(DIAMOND, "-o", "json", "--request-id", "d")

    assert answer.code == 0
    assert answer.json["rootTasks"] == ["top"]
    assert (answer.json["status"], answer.json["totalTasks"]) == ("running", 4)
    assert (answer.json["requestId"], answer.json["created"]) == ("d", True)


def test_a_new_request_id_is_printed_and_returns_the_same_job_again(
    submit: Callable[..., CommandResult],
) -> None:
    first = submit(DIAMOND, "-o", "json").json

    second = submit(DIAMOND, "-o", "json", "--request-id", first["requestId"]).json

    assert (second["jobId"], second["created"]) == (first["jobId"], False)
    assert second["rootTasks"] == ["top"]
    assert submit(DIAMOND, "-o", "json").json["jobId"] != first["jobId"]


def test_another_job_under_the_same_request_id_is_refused(
    submit: Callable[..., CommandResult],
) -> None:
    submit(DIAMOND, "--request-id", "d")

    answer = submit("{tasks: [{taskId: a, name: command}]}", "--request-id", "d")

    assert answer.code == ExitCode.REFUSED


def test_every_problem_of_a_file_is_listed_with_its_path_and_nothing_is_stored(
    cli: Cli, submit: Callable[..., CommandResult]
) -> None:
    text = """
    definitions:
      - {name: "a b", runner: steam, timeout: 0s, retry: {maxAttempts: 0}, colour: red}
      - {name: twice, runner: command}
      - {name: twice, runner: python, retryableExitCodes: [300], requiresReview: 1}
      - 7
    tasks:
      - {taskId: x, name: command, dependsOn: [y]}
      - {taskId: x, name: command, priority: huge}
    """

    answer = submit(text, "-o", "json")

    paths = {problem["path"] for problem in json.loads(answer.err)["error"]["problems"]}
    assert answer.code == ExitCode.USAGE
    assert paths >= {
        *(f"definitions[0].{name}" for name in ("name", "runner", "timeout", "retry", "colour")),
        *("definitions[2].retryableExitCodes", "definitions[2].requiresReview", "definitions[3]"),
        *("tasks[1].priority", "tasks[1].taskId", "tasks[0].dependsOn[0]"),
    }
    assert cli.jobs() == []


def test_an_unknown_definition_is_rejected_before_anything_is_stored(
    cli: Cli, submit: Callable[..., CommandResult], inside: Inside
) -> None:
    text = """
    definitions: [{name: known, runner: command}]
    tasks: [{taskId: a, name: known}, {taskId: b, name: unknown}]
    """
    answer = submit(text)

    again = submit("{tasks: [{taskId: a, name: known}]}")

    assert "tasks[1].name: no definition is called 'unknown'" in answer.err
    assert "tasks[0].name: no definition is called 'known'" in again.err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tasks: [", "line 1"),
        ("tasks:\n  - {taskId: a, taskId: b}\n", "line 2: 'taskId' occurs twice"),
        ("a: !!python/object:os.system {}", "line 1"),
        ("", "\n  expected an object"),
        ("[1, 2]", "\n  expected an object"),
        ('{"tasks": [{"taskId": "a", "name": "command", "input": NaN}]}', "NaN is not JSON"),
        ('{"tasks": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    ],
)
def test_an_invalid_file_is_rejected_with_the_line_of_the_error(
    submit: Callable[..., CommandResult], text: str, expected: str
) -> None:
    answer = submit(text)

    assert answer.code == ExitCode.USAGE
    assert expected in answer.err


def test_aliases_that_expand_to_millions_of_values_are_refused(
    submit: Callable[..., CommandResult],
) -> None:
    names = "abcdefghij"
    levels = [
        f"  {name}: &{name} [{', '.join([f'*{previous}'] * 9)}]"
        for previous, name in itertools.pairwise(names)
    ]
    bomb = "\n".join(["tasks: []", "x:", "  a: &a [ha]", *levels])

    answer = submit(bomb)

    assert answer.code == ExitCode.USAGE
    assert "more than 2,000,000 values, including those that its aliases (*)" in answer.err


def test_a_json_file_with_an_error_is_not_read_as_yaml(inside: Inside, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text('{"tasks": [{taskId: a, name: command}]}')

    answer = inside("submit", str(file))

    assert answer.code == ExitCode.USAGE
    assert "job.json, line 1: it is not JSON" in answer.err


def test_a_missing_file_is_named(inside: Inside) -> None:
    answer = inside("submit", "/nowhere/job.yaml")

    assert answer.code == ExitCode.USAGE
    assert "/nowhere/job.yaml" in answer.err


def test_a_date_in_yaml_is_read_as_text(
    cli: Cli, submit: Callable[..., CommandResult], inside: Inside
) -> None:
    text = """
    tasks:
      - taskId: later
        name: command
        runAt: 2100-01-31T12:00:00Z
        input: {argv: [echo, 2100-01-31]}
    """

    accepted = submit(text, "-o", "json").json

    folder_options = ("--data-dir", str(cli.folder / ".longshore"))
    (task,) = inside("job", accepted["jobId"], "-o", "json", *folder_options).json["tasks"]
    assert task["dueAt"] == "2100-01-31T12:00:00.000Z"


def test_waiting_prints_how_to_approve_a_result(cli: Cli) -> None:
    draft = {"runner": "command", "requiresReview": True, "options": {"argv": ["true"]}}
    job = {"definitions": {"draft": draft}, "tasks": [{"taskId": "a", "name": "draft"}]}
    with cli.start("submit", _write(cli, json.dumps(job)), "--wait") as waiting:
        while "needs a review" not in (line := waiting.stderr.readline()):
            assert line
        words = line.split()
        approved = cli(*words[words.index("longshore") + 1 :])

        code = waiting.wait(TIMEOUT_S)

    assert (approved.code, code) == (ExitCode.OK, ExitCode.OK)
    assert cli.only_job_state() is JobState.COMPLETED


def test_an_interrupted_wait_leaves_the_job_to_the_next_worker(cli: Cli) -> None:
    (cli.folder / "longshore.toml").write_text('worker.drain_grace = "1h"\n')
    begun = cli.make_fifo("begun")
    script = f"test -e again && exec true; touch again; echo > {begun}; exec sleep 600"
    task = {"taskId": "a", "name": "command", "input": {"argv": ["sh", "-c", script]}}
    task["input"]["cwd"] = str(cli.folder)
    with cli.start("submit", _write(cli, json.dumps({"tasks": [task]})), "--wait") as waiting:
        begun.read_text()
        send_signal(waiting, signal.SIGINT)
        while "press Ctrl-C again" not in waiting.stderr.readline():
            continue
        # The attempt has an hour of grace; a second signal does not wait for it.
        send_signal(waiting, signal.SIGINT)
        code = waiting.wait(TIMEOUT_S)
        errors = waiting.stderr.read()
    left = cli.only_job_state()

    cli("worker", "--burst")

    assert (code, left) == (ExitCode.INTERRUPTED, JobState.RUNNING)
    assert "workers continue job-" in errors
    assert cli.only_job_state() is JobState.COMPLETED


def test_waiting_leaves_the_tasks_to_a_running_worker(cli: Cli) -> None:
    """The worker may have settings that the client lacks, such as the credentials of agents."""
    with (
        closing(FileWorkerRegistry(cli.folder / ".longshore")) as registry,
        cli.start("worker") as worker,
    ):
        while not (there := registry.live_workers()):
            continue
        answer = cli("submit", _write(cli, DIAMOND), "--wait", "--request-id", "d")
        (job,) = cli.jobs()
        events = json.loads(cli("events", job.id, "--all", "-o", "json").out)
        send_signal(worker, signal.SIGTERM)

    ran = {event["properties"].get("workerId") for event in events} - {None}
    assert (answer.code, ran) == (0, set(there))


def test_waiting_runs_the_tasks_when_the_worker_has_gone(cli: Cli) -> None:
    with closing(FileWorkerRegistry(cli.folder / ".longshore")) as registry:
        registry.register("worker-1", ("default",))
        with cli.start("submit", _write(cli, DIAMOND), "--wait", "--request-id", "d") as waiting:
            while not cli.jobs():
                continue
            registry.deregister("worker-1")
            assert waiting.wait(TIMEOUT_S) == 0

    assert cli.only_job_state() is JobState.COMPLETED
