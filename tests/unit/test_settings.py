"""Refused settings and their messages, the environment of a task, and how settings are shown."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from longshore.errors import ConfigurationError
from longshore.settings import (
    COMPATIBLE_VARIABLES,
    ENVIRONMENT_ALIASES,
    FIELDS,
    Settings,
    child_environment,
    descriptions,
    is_secret,
    variable_of,
)
from longshore.settings.model import WorkerSettings, format_value, plain_problem
from tests.factories import SECOND
from tests.unit.settings_loading import load_settings_for_test, row


def refused(folder: Path, **settings: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load_settings_for_test(folder, **settings)
    return list(caught.value.problems)


def test_an_unknown_variable_is_named_with_a_suggestion(tmp_path: Path) -> None:
    problems = refused(tmp_path, LONGSHORE_WORKER_CONCURENCY="3")

    assert problems == [
        "environment: no setting is called 'LONGSHORE_WORKER_CONCURENCY'; "
        "did you mean 'LONGSHORE_WORKER_CONCURRENCY'?"
    ]


def test_a_variable_that_marks_an_attempt_is_not_taken_for_a_setting(tmp_path: Path) -> None:
    loaded = load_settings_for_test(tmp_path, LONGSHORE_ATTEMPT="job-x_a/1")

    assert loaded.settings == Settings()


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("tenent = 1", "no setting is called 'tenent'; did you mean 'tenant'?"),
        (
            "[worker]\nconcurency = 1",
            "no setting is called 'worker.concurency'; did you mean 'worker.concurrency'?",
        ),
        ("[workers]\nconcurrency = 1", "no setting is called 'workers'; did you mean 'worker'?"),
        ("zzzzzz = 1", "no setting is called 'zzzzzz'"),
        ('[sqlite]\nslow_poll = "1s"', "no setting is called 'sqlite'"),
        ("worker = 3", "worker must be a table: [worker]"),
    ],
)
def test_an_unknown_key_in_the_file_is_named(tmp_path: Path, file: str, problem: str) -> None:
    assert refused(tmp_path, file=file) == [f"longshore.toml: {problem}"]


def test_an_unknown_flag_is_named(tmp_path: Path) -> None:
    problems = refused(tmp_path, flags={"worker.concurency": 3})

    assert problems == [
        "flag: no setting is called 'worker.concurency'; did you mean 'worker.concurrency'?"
    ]


def test_a_named_file_that_is_missing_is_a_problem(tmp_path: Path) -> None:
    problems = refused(tmp_path, LONGSHORE_CONFIG="nowhere.toml")

    assert problems == ["LONGSHORE_CONFIG: there is no file 'nowhere.toml'"]


def test_a_file_that_is_no_toml_is_a_problem_with_its_place(tmp_path: Path) -> None:
    (problem,) = refused(tmp_path, file="[worker]\nconcurrency 3")

    assert problem.startswith("longshore.toml: ")
    assert "line 2" in problem


def test_a_folder_in_place_of_the_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "longshore.toml").mkdir()

    (problem,) = refused(tmp_path)

    assert problem.startswith("longshore.toml: ")


def test_all_problems_are_reported_at_once_with_their_origins(tmp_path: Path) -> None:
    problems = refused(
        tmp_path,
        file="nonsense = 1\n[retry]\nbase = 'soon'\n",
        flags={"worker.concurrency": 0},
        LONGSHORE_LOG_FORMAT="xml",
        LONGSHORE_WORKER_QUEUES="default,no good",
        LONGSHORE_WORKER_POLL_WAIT="-1",
        LONGSHORE_TYPO="1",
    )

    assert len(problems) == 7
    text = "\n".join(problems)
    assert "worker.concurrency: must be greater than or equal to 1, not 0 (flag)" in text
    assert "not 'xml' (LONGSHORE_LOG_FORMAT in the environment)" in text
    assert "worker.queues: 'no good' is not a name" in text
    assert "worker.poll_wait: a duration cannot be negative, but '-1' is" in text
    assert "retry.base: 'soon' is not a duration" in text
    assert "(longshore.toml)" in text


@pytest.mark.parametrize("queues", [",", "a,a", "a,b,a"])
def test_a_worker_serves_at_least_one_queue_and_none_twice(tmp_path: Path, queues: str) -> None:
    (problem,) = refused(tmp_path, LONGSHORE_WORKER_QUEUES=queues)

    assert "must have at least one name, and none twice" in problem


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"WORKER_RENEW_EVERY": "30s"}, ["worker: renew_every", "extend_by (30s), not 30s"]),
        (
            {"WORKER_KILL_GRACE": "23s"},
            ["worker: renew_every (20s)", "kill_grace (23s)", "extend_by (30s)"],
        ),
        ({"RETRY_BASE": "31s"}, ["retry: cap", "base (31s), not 30s"]),
    ],
)
def test_settings_that_contradict_each_other_are_both_named(
    tmp_path: Path, environ: dict[str, str], names: list[str]
) -> None:
    values = {f"LONGSHORE_{name}": text for name, text in environ.items()}

    (problem,) = refused(tmp_path, **values)

    assert [name for name in names if name not in problem] == []


def test_contradictions_of_several_sections_are_reported_together(tmp_path: Path) -> None:
    problems = refused(tmp_path, LONGSHORE_RETRY_BASE="31s", LONGSHORE_WORKER_RENEW_EVERY="30s")

    assert len(problems) == 2


def test_settings_just_inside_their_bounds_are_accepted(tmp_path: Path) -> None:
    settings = load_settings_for_test(
        tmp_path,
        LONGSHORE_WORKER_RENEW_EVERY="29999ms",
        LONGSHORE_WORKER_KILL_GRACE="13s",
        LONGSHORE_RETRY_BASE="30s",
    ).settings

    assert settings.worker.duration == 45 * SECOND


def test_a_bound_that_is_crossed_inside_a_section_is_also_refused_in_code() -> None:
    with pytest.raises(ValidationError, match="renew_every must be shorter than extend_by"):
        WorkerSettings(renew_every=40 * SECOND)


def test_a_task_gets_only_what_is_allowed() -> None:
    environ = {
        "PATH": "/bin",
        "LC_ALL": "C.UTF-8",
        "AWS_REGION": "eu-west-1",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "ANTHROPIC_API_KEY": "hidden",
        "LONGSHORE_APP": "x",
        "MY_PASSWORD": "hidden",
        "TRACEPARENT": "00-1-2-01",
        "TRACESTATE": "a=b",
    }

    passed = child_environment(Settings(), environ)

    assert passed == {
        "PATH": "/bin",
        "LC_ALL": "C.UTF-8",
        "AWS_REGION": "eu-west-1",
    }


def test_the_list_of_passed_variables_can_be_set(tmp_path: Path) -> None:
    settings = load_settings_for_test(
        tmp_path, LONGSHORE_WORKER_PASS_ENVIRONMENT="PATH,MY_OWN"
    ).settings

    passed = child_environment(settings, {"MY_OWN": "1", "HOME": "/root"})

    assert passed == {"MY_OWN": "1"}


def test_a_task_of_this_process_gets_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "from the process")
    monkeypatch.setenv("MY_PASSWORD", "hidden")

    passed = child_environment(Settings())

    assert passed["TERM"] == "from the process"
    assert "MY_PASSWORD" not in passed


@pytest.mark.parametrize(
    "variable",
    [
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        *("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"),
    ],
)
def test_a_credential_cannot_be_passed_to_every_task(tmp_path: Path, variable: str) -> None:
    (problem,) = refused(tmp_path, LONGSHORE_WORKER_PASS_ENVIRONMENT=f"PATH,{variable}")

    assert f"{variable} is a credential" in problem
    assert "[masked]" not in problem


def test_what_is_no_name_of_a_variable_cannot_be_passed(tmp_path: Path) -> None:
    (problem,) = refused(tmp_path, LONGSHORE_WORKER_PASS_ENVIRONMENT="A=B")

    assert "'A=B' is not a variable name" in problem


def test_no_home_folder_for_a_path_is_a_problem(tmp_path: Path) -> None:
    (problem,) = refused(tmp_path, LONGSHORE_DATA_DIR="~no-such-user-anywhere/x")

    assert "has no home directory" in problem


SECRET_IN_FILE = "sk-ant-in-a-file"


@pytest.mark.parametrize(
    "variable", ["LONGSHORE_AGENT_API_KEY", "ANTHROPIC_API_KEY", "LONGSHORE_API_KEY"]
)
@pytest.mark.parametrize("by", ["variable", "credential"])
def test_a_secret_may_be_in_a_file(tmp_path: Path, variable: str, by: str) -> None:
    file = tmp_path / variable
    file.write_text(f"{SECRET_IN_FILE}\n")
    named = {f"{variable}_FILE": str(file)}
    environ = named if by == "variable" else {"CREDENTIALS_DIRECTORY": str(tmp_path)}

    loaded = load_settings_for_test(tmp_path, **environ)

    name = {"LONGSHORE_API_KEY": "api_key"}.get(variable, "agent.api_key")
    value = loaded.settings.agent.api_key if "." in name else loaded.settings.api_key
    assert value is not None
    assert value.get_secret_value() == SECRET_IN_FILE
    origin = f"{variable}_FILE in the environment" if by == "variable" else "of systemd"
    assert origin in loaded.origins[name]
    assert SECRET_IN_FILE not in str(row(loaded, name))


def test_nothing_but_a_secret_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x" * 40)
    for name in FIELDS:
        environ = {f"{variable_of(name)}_FILE": str(tmp_path / "secret")}
        if not is_secret(name):
            (problem,) = refused(tmp_path, **environ)
            assert "no setting is called" in problem


def test_a_variable_counts_more_than_a_credential(tmp_path: Path) -> None:
    (tmp_path / "ANTHROPIC_API_KEY").write_text(SECRET_IN_FILE)
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path), "ANTHROPIC_API_KEY": "sk-ant-given"}

    key = load_settings_for_test(tmp_path, **environ).settings.agent.api_key

    assert key is not None
    assert key.get_secret_value() == "sk-ant-given"


@pytest.mark.parametrize(
    ("content", "others", "problem"),
    [
        (None, {}, "cannot be read: No such file"),
        (b"", {}, "is empty"),
        (b"\xff", {}, "is not UTF-8 text"),
        (b"x", {"ANTHROPIC_API_KEY": "y"}, "are both set; keep one"),
    ],
)
def test_a_file_without_a_secret_is_a_problem(
    tmp_path: Path, content: bytes | None, others: dict[str, str], problem: str
) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)

    (refusal,) = refused(tmp_path, ANTHROPIC_API_KEY_FILE=str(tmp_path / "key"), **others)

    assert problem in refusal


def test_a_secret_is_written_masked() -> None:
    assert "hunter2" not in format_value(SecretStr("hunter2"))


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_has_one_line_that_describes_it(name: str) -> None:
    description = descriptions()[name]

    assert description.endswith(".")
    assert "\n" not in description


@pytest.mark.parametrize("name", FIELDS)
def test_every_value_as_it_is_shown_can_be_given_back(tmp_path: Path, name: str) -> None:
    shown = row(load_settings_for_test(tmp_path), name).value

    again = load_settings_for_test(tmp_path, **{variable_of(name): shown})

    assert again.settings == Settings()
    assert again.origins[name] == f"{variable_of(name)} in the environment"


def test_no_two_settings_share_a_variable() -> None:
    assert len({variable_of(name) for name in FIELDS}) == len(FIELDS)


def test_every_alias_names_a_setting() -> None:
    aliases = {**ENVIRONMENT_ALIASES, **COMPATIBLE_VARIABLES}

    assert {name for name, _ in aliases.values()} <= set(FIELDS)


def test_importing_settings_brings_no_other_heavy_library() -> None:
    heavy = ["aiobotocore", "apsw", "boto3", "fastapi", "msgspec", "rich", "typer", "yaml"]
    program = f"import longshore.settings, sys; print([m for m in {heavy} if m in sys.modules])"

    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout

    assert printed.strip() == "[]"


@pytest.mark.parametrize(
    ("values", "alone"),
    [
        ({}, True),
        ({"backend": "aws"}, False),
        ({"backend": "aws", "aws": {"functions": False}}, True),
    ],
)
def test_workers_dispatch_and_sweep_unless_functions_do(
    values: dict[str, Any], alone: bool
) -> None:
    assert Settings(**values).workers_dispatch is alone


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "Input should be a valid integer, unable to parse string as an integer",
            "must be a whole number",
        ),
        ("Value error, 'soon' is not a duration", "'soon' is not a duration"),
        ("Input should be greater than or equal to 1", "must be greater than or equal to 1"),
    ],
)
def test_a_message_of_pydantic_is_in_plain_words(message: str, expected: str) -> None:
    assert plain_problem(message) == expected


@pytest.mark.parametrize("url", ["http://127.0.0.1:8421", "https:/server", "sqlite:///store"])
def test_a_url_is_no_data_folder(tmp_path: Path, url: str) -> None:
    for values in ({"flags": {"data_dir": url}}, {"LONGSHORE_DATA_DIR": url}):
        (problem,) = refused(tmp_path, **values)
        assert "is a URL, not a folder" in problem
    assert load_settings_for_test(tmp_path, LONGSHORE_DATA_DIR="c:x/y").settings
