"""No secret leaves through events, logs, errors or the process list.

Secrets lie in the worker's environment, in what tasks raise, in what they print on stderr and in
URLs; then everything that Longshore reports of the tasks is searched for them. A task's output is
its user's own data: it stays in its output, as it was printed, and must not get anywhere else.
"""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from longshore.core.text.sanitise import mask_secrets
from longshore.interfaces.cli.main import main
from longshore.settings import load_settings
from longshore.wiring.services import open_services
from tests.acceptance.conftest import wait_until
from tests.interfaces.command_line import LONGSHORE, TIMEOUT_S, Cli, CommandResult, send_signal

# Put together here, so that no scanner takes this file for a leak.
# Another one in each process: the whole machine is searched, and others may run this test too.
DRAWN = f"Zx81kQ0vRt5y{os.getpid()}Lm2Np9Wb3Ds6"
PASSWORD, IN_URL, BEARER, CAUSE, NOTE, REPORTED, PRINTED, INPUT, STEP, TYPED = (
    f"{name}-{DRAWN}" for name in ("pa", "ur", "be", "ca", "no", "sa", "pr", "in", "st", "ty")
)
KEY = "sk-" + "ant-api03-" + "AbC1" + DRAWN
ENVIRONMENT = {
    "DEPLOY_TOKEN": f"de-{DRAWN}",
    "AWS_SECRET_ACCESS_KEY": f"aw-{DRAWN}",
    "ANTHROPIC_API_KEY": KEY.replace("AbC1", "XyZ9"),
    "DATABASE_URL": f"postgres://app:da-{DRAWN}@db.example/x",
}
ALL = (PASSWORD, IN_URL, KEY, BEARER, CAUSE, NOTE, REPORTED, PRINTED, INPUT, STEP, TYPED)
FUNCTIONS = f"""
def by_name():
    raise RuntimeError("login failed: password={PASSWORD}")

def by_url():
    raise OSError("cannot reach postgres://app:{IN_URL}@db.example/x")

def by_shape():
    raise ValueError("the key {KEY} was refused")

def by_header():
    raise PermissionError("refused: Authorization: Bearer {BEARER}")

def by_cause():
    try:
        raise ValueError("token={CAUSE}")
    except ValueError as error:
        raise RuntimeError("upload failed: " + str(error)) from error

def by_note():
    error = RuntimeError("upload failed: password=")
    error.add_note("client_secret={NOTE}")
    raise error

def waits(gate, begun, password):
    open(begun, "w").close()
    open(gate).readline()
"""
RAISING = ("by_name", "by_url", "by_shape", "by_header", "by_cause", "by_note")
REPORTING = ("stderr", "channel")
SCRIPTS = {
    "stderr": f"echo before; echo 'password={PRINTED}' >&2; echo after >&2; exit 3",
    "channel": (
        f"""echo '{{"type":"error","category":"auth","message":"token={REPORTED}"}}'"""
        " >&$LONGSHORE_ATTEMPT_CHANNEL; exit 3"
    ),
    "waits": 'touch "$1.begun"; sleep 600 & read line < "$1.gate"',
    "step": (
        """echo '{"type":"activity","activity":"step_running","""
        f""""step":"fetch https://app:{STEP}@db.example/x"}}' >&$LONGSHORE_ATTEMPT_CHANNEL;"""
        ' read line < "$1.gate"'
    ),
}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "leaky.py").write_text(FUNCTIONS)
    for name, script in SCRIPTS.items():
        (tmp_path / f"{name}.sh").write_text(script)
    return Cli(tmp_path)


@pytest.fixture
def ask(
    cli: Cli, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., CommandResult]]:
    """The command line without a process of its own, with secrets in its environment."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    for name, text in ENVIRONMENT.items():
        monkeypatch.setenv(name, text)
    capfd.readouterr()

    def run(*arguments: str) -> CommandResult:
        code = main(["--data-dir", str(cli.folder / ".longshore"), "-vv", *arguments])
        message = capfd.readouterr()
        return CommandResult(code=code, out=message.out, err=message.err)

    yield run
    root.handlers, root.level = handlers, level


def function(cli: Cli, name: str, **kwargs: str) -> dict[str, Any]:
    call = {"function": f"leaky:{name}", "path": [str(cli.folder)], "kwargs": kwargs}
    return {"taskId": name, "name": "python", "input": call, "maxAttempts": 1}


def script(cli: Cli, name: str) -> dict[str, Any]:
    argv = ["sh", str(cli.folder / f"{name}.sh"), str(cli.folder / name)]
    return {"taskId": name, "name": "command", "input": {"argv": argv}, "maxAttempts": 1}


def submit(cli: Cli, *tasks: dict[str, Any]) -> str:
    answer = cli("submit", "-", "-o", "json", stdin=json.dumps({"tasks": list(tasks)}))
    assert answer.code == 0, answer.err
    return str(answer.json["jobId"])


def leaks_in(*texts: str) -> list[str]:
    """The secrets that can be read there."""
    return [item for item in (*ALL, *ENVIRONMENT.values()) if any(item in text for text in texts)]


def shown(answer: CommandResult) -> str:
    return answer.out + answer.err


@pytest.mark.parametrize("style", ["json", "text"])
def test_a_secret_in_an_error_or_on_stderr_gets_into_no_event_no_log_and_no_answer(
    style: str, cli: Cli, ask: Callable[..., CommandResult]
) -> None:
    tasks = [*(function(cli, name) for name in RAISING), *(script(cli, name) for name in REPORTING)]
    job_id = submit(cli, *tasks)

    worked = cli("worker", "--burst", "-vv", env={**ENVIRONMENT, "LONGSHORE_LOG_FORMAT": style})
    questions = [("job", job_id), ("jobs",), ("tasks",), ("events", job_id), ("doctor",)]
    questions += [("events", f"{job_id}_{task['taskId']}") for task in tasks]
    answers = [ask(*question, *more) for question in questions for more in ((), ("-o", "json"))]
    notices = {task["taskId"]: error_events(ask, f"{job_id}_{task['taskId']}") for task in tasks}
    printed = ask("logs", f"{job_id}_stderr")

    assert leaks_in(shown(worked)) == []
    assert leaks_in(*map(shown, answers)) == []
    # Each error is reported, without its secret (a note is not part of the message); and what was
    # printed has not been lost.
    masked = {name for name, errors in notices.items() if "[masked]" in errors[0]}
    assert masked == {*RAISING, "channel"} - {"by_note"}
    assert {"before", "after"} <= set(shown(printed).split())
    assert "attempt.ended" in worked.err


def error_events(ask: Callable[..., CommandResult], task_id: str) -> list[str]:
    events = ask("events", task_id, "-o", "json").json
    return [event["properties"]["error"] for event in events if event["eventType"] == "Task Failed"]


@contextmanager
def start_worker(cli: Cli) -> Iterator[subprocess.Popen]:
    """A worker with secrets in its environment; what it says goes to a file."""
    with (cli.folder / "worker.log").open("w") as message:
        process = subprocess.Popen(
            [*LONGSHORE, "worker", "-vv"],
            cwd=cli.folder,
            env={**cli.environment, **ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=message,
            stderr=message,
        )
    try:
        yield process
        send_signal(process, signal.SIGTERM)
        process.wait(TIMEOUT_S)
    finally:
        process.kill()
        process.wait()


def processes_with(secret: str, file: str) -> set[int]:
    """All processes of the machine whose ``environ`` or ``cmdline`` contains the text."""
    result = set()
    for folder in Path("/proc").iterdir():
        # A process that has just ended, or belongs to another user.
        with suppress(OSError):
            if folder.name.isdigit() and secret.encode() in (folder / file).read_bytes():
                result.add(int(folder.name))
    return result


def exist(*paths: Path) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return all(path.exists() for path in paths)

    return look


def test_secrets_of_the_worker_and_of_an_input_are_in_no_child_and_in_no_process_list(
    cli: Cli,
) -> None:
    gates = [cli.folder / "waits.gate", cli.folder / "function.gate"]
    begun = [cli.folder / "waits.begun", cli.folder / "function.begun"]
    for gate in gates:
        os.mkfifo(gate)
    options = {"gate": str(gates[1]), "begun": str(begun[1]), "password": INPUT}
    called = {**function(cli, "waits", **options), "taskId": "function"}
    submit(cli, script(cli, "waits"), called)

    with start_worker(cli) as worker:
        asyncio.run(wait_until(exist(*begun)))
        environments = {name: processes_with(text, "environ") for name, text in ENVIRONMENT.items()}
        given_to = processes_with(INPUT, "environ")
        listed = [processes_with(text, "cmdline") for text in (INPUT, *ENVIRONMENT.values())]
        for gate in gates:
            gate.write_text("go\n")

    # The worker's own memory is hidden from all but root.
    seen = {worker.pid} if os.geteuid() == 0 else set()
    assert environments == dict.fromkeys(ENVIRONMENT, seen)
    assert given_to == set()
    assert set().union(*listed) == set()
    assert leaks_in((cli.folder / "worker.log").read_text()) == []


# Prints what a task can read of its parent and of every process above it.
WALK = """
import json, os

def may_read(path):
    try:
        os.readlink(path) if "/fd/" in path else open(path, "rb").read()
    except PermissionError:
        return False
    return True

seen, above = [], os.getppid()
while above > 1:
    fields = open(f"/proc/{above}/stat").read().rpartition(")")[2].split()
    seen.append([above, may_read(f"/proc/{above}/environ"), may_read(f"/proc/{above}/fd/0")])
    above = int(fields[1])
print(json.dumps(seen))
"""
WALKER = f"""
import subprocess, sys

def walk():
    subprocess.run([sys.executable, "-c", {WALK!r}], check=True)
"""


@pytest.mark.parametrize("command", [("worker",), ("up", "--port", "0")])
def test_a_task_cannot_read_the_environment_and_files_of_the_processes_above_it(
    command: tuple[str, ...],
) -> None:
    # In a user namespace root is a user without privileges; nothing is hidden from root itself.
    user = ["unshare", "--user", "--map-user=65534"] if os.geteuid() == 0 else []
    with TemporaryDirectory() as folder:
        Path(folder, "walker.py").write_text(WALKER)
        cli = Cli(Path(folder))
        argv = [sys.executable, "-c", WALK]
        call = {"function": "walker:walk", "path": [folder]}
        tasks = [
            {"taskId": "command", "name": "command", "input": {"argv": argv}},
            {"taskId": "function", "name": "python", "input": call},
        ]
        with subprocess.Popen(
            [*user, *LONGSHORE, *command],
            cwd=folder,
            env={**cli.environment, **ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                process.stdout.readline()
                job = json.dumps({"tasks": tasks})
                submitted = subprocess.run(
                    [*user, *LONGSHORE, "submit", "-", "--wait"],
                    cwd=folder,
                    env=cli.environment,
                    input=job,
                    text=True,
                    capture_output=True,
                    timeout=TIMEOUT_S,
                    check=False,
                )
                assert submitted.returncode == 0, submitted.stderr
            finally:
                send_signal(process, signal.SIGTERM)
                process.wait(TIMEOUT_S)
        walks = {key: json.loads(cli("logs", f"job-_{key}").out) for key in ("command", "function")}
    for walk in walks.values():
        above = [number for number, *_ in walk]
        assert process.pid in above
        assert walk == [[number, False, False] for number in above]


def test_a_secret_in_the_name_of_a_step_does_not_get_into_events(cli: Cli) -> None:
    (cli.folder / "longshore.toml").write_text('[worker]\nrenew_every = "50ms"\n')
    os.mkfifo(cli.folder / "step.gate")
    job_id = submit(cli, script(cli, "step"))
    settings = load_settings({"data_dir": cli.folder / ".longshore"}, environ={})

    async def scenario() -> list[str]:
        async with open_services(settings) as services:

            async def steps() -> list[str]:
                history = await services.backend.events.history("default", f"TASK#{job_id}_step")
                doing = [getattr(event.body, "last_activity", None) for event in history]
                return [item.step_name for item in doing if item is not None and item.step_name]

            return await wait_until(steps)

    with start_worker(cli):
        notices = asyncio.run(scenario())
        (cli.folder / "step.gate").write_text("go\n")

    assert all(name.startswith("fetch https://") for name in notices)
    assert leaks_in(*notices) == []


def test_the_name_that_run_gives_to_a_job_shows_no_secret(
    cli: Cli, ask: Callable[..., CommandResult]
) -> None:
    ask("run", "--", "true", f"https://app:{TYPED}@db.example/x")

    assert leaks_in(shown(ask("jobs")), shown(ask("jobs", "-o", "json"))) == []


def test_an_error_of_the_settings_does_not_repeat_a_secret(
    ask: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGSHORE_WORKER_CONCURRENCY", ENVIRONMENT["DATABASE_URL"])

    answers = [ask("worker", "--burst"), ask("doctor", "-o", "json")]

    assert all("worker.concurrency" in shown(answer) for answer in answers)
    assert leaks_in(*map(shown, answers)) == []


def test_secrets_are_masked_in_the_traceback_that_the_runner_prints(
    cli: Cli, ask: Callable[..., CommandResult]
) -> None:
    job_id = submit(cli, function(cli, "by_name"))
    cli("worker", "--burst")

    printed = ask("logs", f"{job_id}_by_name")

    assert "RuntimeError: login failed" in shown(printed)
    assert leaks_in(shown(printed)) == []


def test_a_password_in_a_url_is_masked_also_where_it_was_not_escaped() -> None:
    assert "b:c-1234" not in mask_secrets("cannot reach postgres://app:a/b:c-1234@db.example/x")
