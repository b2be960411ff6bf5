"""``longshore budget``, and costs and parked tasks in the listings of jobs and tasks."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.budgets import BudgetScope, BudgetUnit
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.tasks.rows import TaskRow
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.wiring.services import Services
from tests.interfaces.command_line import TIMEOUT_S, Cli, CommandResult
from tests.interfaces.conftest import At
from tests.interfaces.dead_store import query_services
from tests.interfaces.parked_agents import USED_UP, park, writer_definition, writer_task

Inside = Callable[..., CommandResult]
TODAY = {"LONGSHORE_AGENT_USD_PER_DAY": "10", "LONGSHORE_AGENT_TOKENS_PER_DAY": "1000"}

_TOKENS_USED: dict[str, Any] = {
    "unit": BudgetUnit.TOKENS,
    "reason": "1,100 of 1,000 tokens are used",
}


@pytest.fixture
def folder(cli: Cli) -> Path:
    return cli.folder / ".longshore"


@pytest.fixture
def ask(folder: Path, inside: Inside, at: At) -> Inside:
    return lambda *arguments: inside(*arguments, *at(folder))


@pytest.fixture
def submit(cli: Cli, ask: Inside) -> Callable[..., str]:
    """Submit a job of agent tasks with a budget for the job and for each task."""

    def run(*keys: str, of_job: Any = None, of_each: Any = None) -> str:
        file = cli.folder / "job.json"
        document = {
            "tasks": [writer_task(key) for key in keys],
            "definitions": [writer_definition(**({"budget": of_each} if of_each else {}))],
            "budget": of_job,
        }
        file.write_text(json.dumps(document))
        answer = ask("submit", str(file), "-o", "json")
        assert answer.code == 0, answer.err
        return str(answer.json["jobId"])

    return run


def _park(folder: Path, job_id: str, key: str, **how: Any) -> None:
    async def parked(services: Services) -> TaskRow:
        return await park(services, task_id_of(job_id, key), **how)

    query_services(folder, parked)


def test_a_parked_task_is_shown_with_its_reason_and_continues_when_budget_is_added(
    folder: Path, ask: Inside, submit: Callable[..., str]
) -> None:
    job_id = submit("a", "b", of_each={"usd": 0.15})
    _park(folder, job_id, "a")

    listed = ask("tasks", "--state", "parked")
    job = ask("job", job_id).out
    why = ask("why", f"{job_id}_a").out
    added = ask("budget", "add", f"{job_id}_a", "--usd", "5")

    assert f"{job_id}_a" in listed.out
    assert f"{job_id}_b" not in listed.out
    assert USED_UP in " ".join(listed.out.split())
    assert USED_UP in " ".join(job.split())
    assert "1 parked" in job
    assert f"→ longshore budget add {job_id}_a --usd 5" in why
    assert (added.code, added.err) == (0, "")
    head, *table = added.out.splitlines()
    assert head == f"{job_id}_a: $5.00 more"
    assert [line.split() for line in table] == [
        ["LIMIT", "ADDED", "SPENT", "RESERVED"],
        ["dollars", "5.1500", "5.0000", "0.2000", "0.0000"],
        ["tokens", "no", "limit", "1,100", "0"],
        ["minutes", "no", "limit", "1.5", "0.0"],
    ]
    assert ask("tasks", "--state", "parked").err == "no parked tasks\n"
    assert "Task Budget Added" in ask("events", f"{job_id}_a").out


def test_budgets_are_shown_as_a_table_and_as_json(
    folder: Path, ask: Inside, submit: Callable[..., str]
) -> None:
    job_id = submit("a", of_job={"usd": 2, "minutes": 30}, of_each=0.15)
    _park(folder, job_id, "a")

    of_job = ask("budget", "show", job_id)
    of_task = ask("budget", "show", f"{job_id}_a", "-o", "json").json
    of_day = ask("budget", "show", "today")

    assert [line.split() for line in of_job.out.splitlines()] == [
        [job_id],
        ["LIMIT", "SPENT", "RESERVED"],
        ["dollars", "2.0000", "0.0000", "0.0000"],
        ["tokens", "no", "limit", "0", "0"],
        ["minutes", "30.0", "0.0", "0.0"],
    ]
    assert of_task["limit"] == {"usd": 0.15, "tokens": None, "minutes": None}
    assert of_task["spent"] == {"usd": 0.2, "tokens": 1_100, "minutes": 1.5}
    assert of_day.out.startswith("today\n")
    assert of_day.out.count("no limit") == 3


def test_the_same_request_adds_once(ask: Inside, submit: Callable[..., str]) -> None:
    job_id = submit("a", of_job={"usd": 2})

    for _ in range(2):
        once = ask("budget", "add", job_id, "--usd", "1", "--request-id", "more", "-o", "json")
    again = ask("budget", "add", job_id, "--usd", "1", "-o", "json")

    assert (once.json["limit"]["usd"], once.json["added"]["usd"]) == (3.0, 1.0)
    assert again.json["limit"]["usd"] == 4.0


def test_adding_to_the_budget_of_a_job_unparks_its_tasks(
    folder: Path, ask: Inside, submit: Callable[..., str]
) -> None:
    job_id = submit("a", "b", of_job={"tokens": 1_000})
    for key in ("a", "b"):
        _park(folder, job_id, key, scope=BudgetScope.JOB, **_TOKENS_USED)

    why = ask("why", f"{job_id}_a").out
    added = ask("budget", "add", job_id, "--tokens", "5000")

    assert f"→ longshore budget add {job_id} --tokens 100000" in why
    assert added.out.startswith(f"{job_id}: 5,000 tokens more\n")
    statuses = [task["status"] for task in ask("job", job_id, "-o", "json").json["tasks"]]
    assert statuses == ["pending", "pending"]


def test_adding_to_a_task_warns_if_the_budget_of_its_job_is_used_up(
    folder: Path, ask: Inside, submit: Callable[..., str]
) -> None:
    job_id = submit("a", of_job={"usd": 0.15}, of_each={"usd": 3})
    _park(folder, job_id, "a", scope=BudgetScope.JOB, reason="budget of the job: it is spent")

    added = ask("budget", "add", f"{job_id}_a", "--usd", "1")

    assert added.code == 0
    assert "the task is still parked, budget of the job: it is spent" in added.err
    assert f"`longshore why {job_id}_a`" in added.err


def test_adding_too_little_warns_that_the_budget_is_still_used_up(
    folder: Path, ask: Inside, submit: Callable[..., str]
) -> None:
    job_id = submit("a", of_each={"usd": 0.15})
    _park(folder, job_id, "a")

    little = ask("budget", "add", f"{job_id}_a", "--usd", "0.005")
    enough = ask("budget", "add", f"{job_id}_a", "--usd", "1")

    assert little.out.startswith(f"{job_id}_a: $0.0050 more\n")
    assert "the budget is still used up: 0.2000 of 0.1550 dollars; add more" in little.err
    assert enough.err == ""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("show", "job-nowhere"), ExitCode.NOT_FOUND, "job-nowhere"),
        (("add", "job-nowhere", "--usd", "1"), ExitCode.NOT_FOUND, "job-nowhere"),
        (("add", "{job}"), ExitCode.USAGE, "nothing to add: use --usd, --tokens or --minutes"),
        (("add", "{job}", "--usd", "0"), ExitCode.USAGE, "--usd"),
        (("add", "{job}", "--usd", "-1"), ExitCode.USAGE, "--usd"),
        (("add", "{job}", "--usd", "much"), ExitCode.USAGE, "--usd"),
        (("add", "{job}", "--usd", "nan"), ExitCode.USAGE, "--usd"),
        (("add", "{job}", "--usd", "1e12"), ExitCode.USAGE, "--usd: 1,000,000,000 at most"),
        (("add", "{job}", "--tokens", "1.5"), ExitCode.USAGE, "--tokens"),
        (("add", "{job}", "--tokens", "5"), ExitCode.USAGE, "to raise; "),
        (("add", "today", "--usd", "5"), ExitCode.USAGE, "to raise; "),
    ],
)
def test_an_invalid_addition_changes_nothing(
    arguments: tuple[str, ...],
    code: ExitCode,
    message: str,
    ask: Inside,
    submit: Callable[..., str],
) -> None:
    job_id = submit("a", of_job={"usd": 2})

    answer = ask("budget", *(argument.format(job=job_id) for argument in arguments))

    assert (answer.code, answer.out) == (code, ""), answer.err
    assert message in " ".join(answer.err.split())
    added = ask("budget", "show", job_id, "-o", "json").json["added"]
    assert added == {"usd": None, "tokens": None, "minutes": None}


def test_nothing_is_added_to_an_ended_job_or_task(ask: Inside, submit: Callable[..., str]) -> None:
    job_id = submit("a", of_job={"usd": 2})
    assert ask("cancel", job_id).code == 0

    for id_ in (job_id, f"{job_id}_a"):
        answer = ask("budget", "add", id_, "--usd", "1")
        assert (answer.code, "is cancelled" in answer.err) == (ExitCode.REFUSED, True), answer.err


def test_the_budget_of_today_is_shown_and_raised(
    folder: Path, cli: Cli, inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in TODAY.items():
        monkeypatch.setenv(name, text)
    data_dir = ("--data-dir", str(folder))
    file = cli.folder / "job.json"
    file.write_text(json.dumps({"tasks": [writer_task("a")], "definitions": [writer_definition()]}))
    job_id = inside("submit", str(file), "-o", "json", *data_dir).json["jobId"]
    tomorrow = query_services(folder, _tomorrow)
    _park(folder, job_id, "a", scope=BudgetScope.DAY, until=tomorrow, **_TOKENS_USED)

    why = inside("why", f"{job_id}_a", *data_dir).out
    added = inside("budget", "add", "today", "--usd", "2.5", "--tokens", "500", *data_dir)
    shown = inside("budget", "show", "today", "-o", "json", *data_dir).json

    assert "or by itself at" in why
    assert "→ longshore budget add today --tokens 100000" in why
    assert added.out.startswith("today: $2.50, 500 tokens more\n")
    assert shown["limit"] == {"usd": 12.5, "tokens": 1_500, "minutes": None}
    assert inside("tasks", "--state", "parked", *data_dir).err == "no parked tasks\n"


async def _tomorrow(services: Services) -> Any:
    return services.backend.clock.now() + timedelta(days=1)


def test_listings_have_a_cost_column_only_if_something_has_a_cost(
    folder: Path, cli: Cli, ask: Inside, submit: Callable[..., str]
) -> None:
    job_id = submit("a", "b", of_each={"usd": 0.15})
    free = [ask("jobs").out, ask("job", job_id).out, ask("tasks").out]
    _park(folder, job_id, "a")
    running = ask("jobs").out
    parked = [ask("job", job_id).out, ask("tasks").out]
    assert ask("cancel", job_id).code == 0
    assert cli("worker", "--burst").code == 0
    ended = ask("jobs").out

    assert not any("cost" in text.lower() for text in (*free, running))
    for text in parked:
        head = next(line for line in text.splitlines() if "STATE" in line)
        (paid,) = [line for line in text.splitlines() if "$0.20 " in line and "parked" in line]
        assert paid[: head.index("COST") + len("COST")].endswith("$0.20")
    assert "cost      $0.20" in parked[0]
    head, line = ended.splitlines()
    assert head.endswith("COST")
    assert line.endswith("$0.20")


def test_submit_with_wait_reports_a_parked_task_and_a_command(folder: Path, cli: Cli) -> None:
    file = cli.folder / "job.json"
    file.write_text(json.dumps({"tasks": [writer_task("a")], "definitions": [writer_definition()]}))
    assert cli("queues", "pause", "default").code == 0  # so that only the test starts the task
    with cli.start("submit", str(file), "--request-id", "r1", "--wait") as waiting:
        assert waiting.stderr is not None
        while "is paused by" not in (line := waiting.stderr.readline()):
            assert line
        _park(folder, job_id_of("default", "r1"), "a")

        while "parked" not in (line := waiting.stderr.readline()):
            assert line
        words = line.split()
        why = cli(*words[words.index("longshore") + 1 :])
        assert cli("cancel", job_id_of("default", "r1")).code == 0
        waiting.communicate(timeout=TIMEOUT_S)

    assert line.startswith(f"a: parked ({USED_UP}): longshore why ")
    assert "longshore budget add" in why.out
    assert waiting.returncode == ExitCode.FAILED


def test_parked_attempts_are_not_counted_in_listings(
    folder: Path, ask: Inside, submit: Callable[..., str]
) -> None:
    job_id = submit("a", of_each={"usd": 0.15})
    shown = []
    for _ in range(4):
        _park(folder, job_id, "a")
        (_, line, *_) = ask("tasks").out.splitlines()
        shown.append(line.split()[2])
        assert ask("budget", "add", f"{job_id}_a", "--usd", "1").code == 0

    assert shown == ["0/3"] * 4
