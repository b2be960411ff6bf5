"""What a worker's settings keep from its tasks, and what definitions may give them."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.interfaces.command_line import Cli

# Put together here, so that no scanner takes this file for a leak. No rule knows these words.
SECRET = "quite ordinary" + " words, two of them\nand a second line of words"
LINES = SECRET.splitlines()
LISTED = {"LONGSHORE_WORKER_TASK_SECRETS": "DEPLOY"}
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()
LEAKY = """
import hashlib, json, os, sys, longshore

def leaks():
    value = os.environ["X"]
    print("digest", hashlib.sha256(value.encode()).hexdigest())
    print(value, flush=True)
    for character in value:
        sys.stderr.write(character)
        sys.stderr.flush()
    here = longshore.current()
    here.progress(1, text=value)
    here.step("a step", lambda: {value: [value]})
    return {"value": value, value: json.dumps(value)}

def leaks_at_length():
    value = os.environ["X"]
    print("digest", hashlib.sha256(value.encode()).hexdigest())
    fill = 300_000 * "."
    longshore.current().step("a step", lambda: [fill, value, fill])
    return {"value": value, "fill": fill, "end": value}

def raises():
    raise ValueError(os.environ["X"])

def raises_at_the_cut():
    raise ValueError("." * 480 + os.environ["X"])
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "leaky.py").write_text(LEAKY)
    return Cli(tmp_path)


def run_job(cli: Cli, options: dict[str, Any], env: dict[str, str], **fields: Any) -> str:
    """Run a task with secrets to its end. Returns its job and its output."""
    runner = "command" if "argv" in options else "python"
    definition = {"name": "leaky", "runner": runner, "options": options, **fields}
    task = {"taskId": "a", "name": "leaky", "maxAttempts": 1}
    job = {"definitions": [definition], "tasks": [task]}
    answer = cli("submit", "-", "-o", "json", stdin=json.dumps(job))
    assert answer.code == 0, answer.err
    job_id = answer.json["jobId"]
    worked = cli("worker", "--burst", "-vv", env=env)
    shown = [cli(*question, job_id).out for question in (("job",), ("events",), ("logs",))]
    shown.append(cli("tasks", "-o", "json").out)
    return "".join([worked.out, worked.err, *shown])


def call(cli: Cli, name: str) -> dict[str, Any]:
    path = [str(cli.folder)]
    return {"function": f"leaky:{name}", "path": path, "env": {"X": {"from": "DEPLOY"}}}


def files_with(folder: Path, text: str) -> list[Path]:
    stored = [path for path in folder.rglob("*") if path.is_file()]
    assert stored
    return [path for path in stored if text.encode() in path.read_bytes()]


@pytest.mark.parametrize("isolation", ["fork", "spawn"])
@pytest.mark.parametrize("name", ["leaks", "leaks_at_length", "raises", "raises_at_the_cut"])
def test_a_secret_that_a_definition_gives_to_its_tasks_is_masked_everywhere(
    cli: Cli, name: str, isolation: str
) -> None:
    shown = run_job(cli, call(cli, name), {**LISTED, "DEPLOY": SECRET}, isolation=isolation)

    # A long result is a file of the store.
    assert "[masked]" in shown or files_with(cli.folder / ".longshore", "[masked]")
    assert (f"digest {DIGEST}" in shown) == name.startswith("leaks")
    for line in (*LINES, LINES[0][:12]):
        assert line not in shown
        assert files_with(cli.folder / ".longshore", line) == []


@pytest.mark.parametrize("source", ["variable", "file", "credential"])
@pytest.mark.parametrize("pty", [False, True])
def test_a_command_gets_a_secret_from_each_source(cli: Cli, source: str, pty: bool) -> None:
    env = {**LISTED, "DEPLOY": SECRET}
    if source != "variable":
        (cli.folder / "DEPLOY").write_text(f"{SECRET}\n")
        named = {"DEPLOY_FILE": "DEPLOY"}
        env = LISTED | (named if source == "file" else {"CREDENTIALS_DIRECTORY": str(cli.folder)})
    script = 'printf %s "$X" | sha256sum; echo "$X"; echo "$X" >&2; echo "$DEPLOY"'
    options = {"argv": ["sh", "-c", script], "env": {"X": {"from": "DEPLOY"}}}

    shown = run_job(cli, options, env, pty=pty)

    assert DIGEST in shown
    for line in LINES:
        assert line not in shown
        assert files_with(cli.folder / ".longshore", line) == []


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({"DEPLOY": SECRET}, "add its name to the setting worker.task_secrets"),
        (LISTED, "set the variable, or DEPLOY_FILE with the path of its file"),
        ({**LISTED, "DEPLOY": "short"}, "has fewer than 8 characters"),
        ({**LISTED, "DEPLOY_FILE": "/nowhere"}, "'/nowhere' of the secret 'DEPLOY' cannot be read"),
    ],
)
def test_a_task_whose_secret_the_worker_does_not_give_fails_with_the_remedy(
    cli: Cli, env: dict[str, str], problem: str
) -> None:
    assert problem in run_job(cli, call(cli, "leaks"), env)


def test_an_input_cannot_ask_for_a_secret(cli: Cli) -> None:
    options = {"argv": ["sh", "-c", "echo got $X"], "env": {"X": {"from": "DEPLOY"}}}
    job = {"tasks": [{"taskId": "a", "name": "command", "input": options, "maxAttempts": 1}]}
    assert cli("submit", "-", stdin=json.dumps(job)).code == 0

    worked = cli("worker", "--burst", env={**LISTED, "DEPLOY": SECRET})
    tasks = cli("tasks", "-o", "json").json["tasks"]

    assert [task["status"] for task in tasks] == ["failed"], worked.err
    assert "'env' must be an object whose values are strings" in json.dumps(tasks)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"env": {"X": {"from": "no name"}}}, "expected text, or {from: NAME}"),
        ({"env": {"X": {"from": "A", "default": "B"}}}, "expected text, or {from: NAME}"),
        ({"env": {"X": 7}}, "expected text, or {from: NAME}"),
        ({"isolation": "pool"}, "without secrets"),
    ],
)
def test_a_reference_that_is_not_valid_is_refused_with_the_definition(
    cli: Cli, fields: dict[str, Any], problem: str
) -> None:
    options = call(cli, "leaks") | {name: fields[name] for name in ("env",) if name in fields}
    rest = {name: value for name, value in fields.items() if name != "env"}
    definition = {"name": "leaky", "runner": "python", "options": options, **rest}
    job = {"definitions": [definition], "tasks": [{"name": "leaky"}]}

    refused = cli("submit", "-", stdin=json.dumps(job))

    assert refused.code != 0
    assert problem in refused.err


def test_the_processes_of_an_attempt_are_limited(cli: Cli) -> None:
    many = ("sh", "-c", "sleep 1000 & sleep 1000 & sleep 1000 & wait")

    ended = cli("run", "--", *many, env={"LONGSHORE_WORKER_MAX_PROCESSES": "3"})
    tasks = cli("tasks", "-o", "json")

    assert ended.code != 0
    assert "more than 3 processes" in ended.err + tasks.out
    assert "1000" in cli("settings").out.split("worker.max_processes")[1].splitlines()[0]
