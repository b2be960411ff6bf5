"""Variables that other systems have for the same things; what may be called how on AWS."""

from pathlib import Path
from typing import Any

import pytest

from longshore.aws import heartbeat_interval_sec
from longshore.settings import (
    COMPATIBLE_VARIABLES,
    ENVIRONMENT_ALIASES,
    IGNORED_VARIABLES,
    unread_variables,
)
from tests.unit.settings_loading import load_settings_for_test, row
from tests.unit.test_settings import refused

TOKEN = "xoxb-1234567890-abcdefghij"
HOOK = "https://hooks.slack.com/services/T0/B0/abcdefgh"
URL = "https://sqs.eu-west-1.amazonaws.com/123456789012"
COMPATIBLE = {"LONGSHORE_COMPAT_ENV": "true"}
# The variables of section 13 of the description of the system that these names are from.
VARIABLES_OF_A_WORKER = (
    *("AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "SQS_QUEUE_URL", "MAX_MESSAGES"),
    *("VISIBILITY_TIMEOUT", "WAIT_TIME_SECONDS", "VISIBILITY_EXTENSION_INTERVAL"),
    *("VISIBILITY_EXTENSION_AMOUNT", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_MODEL", "CLAUDE_TIMEOUT"),
    *("MAX_CONCURRENT_CLAUDE", "DEFAULT_TIMEOUT", "DYNAMODB_EVENTS_TABLE_NAME", "TENANT_ID"),
    *("APP_NAME", "EVENTBRIDGE_BUS_NAME", "MAX_MESSAGE_RETRIES", "PROCESSING_TIMEOUT_MS"),
    *("S3_BUCKET", "DELETE_FILES_AFTER_UPLOAD", "NODE_ENV"),
)
# Beside what says nothing by itself.
FOREIGN_VARIABLES = {
    "ALERT_CHANNEL": ("C012345", "C012345"),
    "APP_NAME": ("shop", "shop"),
    "ANTHROPIC_API_KEY": (TOKEN, "**********"),
    "ANTHROPIC_AUTH_TOKEN": (TOKEN, "**********"),
    "ANTHROPIC_BASE_URL": ("https://models.example.com", "https://models.example.com"),
    "AWS_REGION": ("eu-west-1", "eu-west-1"),
    "CLAUDE_CODE_OAUTH_TOKEN": (TOKEN, "**********"),
    "CLAUDE_CODE_PATH": ("/opt/claude", "/opt/claude"),
    "CLAUDE_MODEL": ("claude-opus-5-5", "claude-opus-5-5"),
    "CLAUDE_SKIP_PERMISSIONS": ("true", "true"),
    "CLAUDE_TIMEOUT": ("90000", "1m30s"),
    "DELETE_FILES_AFTER_UPLOAD": ("false", "true"),
    "MAX_CONCURRENT_CLAUDE": ("7", "7"),
    "MAX_MESSAGE_RETRIES": ("5", "5"),
    "NODE_ENV": ("prod", "prod"),
    "S3_BUCKET": ("some-bucket", "some-bucket"),
    "SLACK_BOT_TOKEN": (TOKEN, "**********"),
    "SLACK_WEBHOOK_URL": (HOOK, "**********"),
    "SQS_HEARTBEAT_INTERVAL_MS": ("120000", "2m"),
    "SQS_QUEUE_URL": (f"{URL}/agents", "agents"),
    "TENANT_ID": ("acme", "acme"),
    "VISIBILITY_EXTENSION_AMOUNT": ("60", "1m"),
    "VISIBILITY_EXTENSION_INTERVAL": ("10000", "10s"),
    "WAIT_TIME_SECONDS": ("5", "5s"),
}
OTHER_VARIABLES = {
    "ALERT_CHANNEL": {"SLACK_BOT_TOKEN": TOKEN},
    "SLACK_BOT_TOKEN": {"LONGSHORE_ALERTS_SLACK_CHANNEL": "C012345"},
    "SQS_QUEUE_URL": {"LONGSHORE_BACKEND": "aws"},
}


@pytest.mark.parametrize("variable", {**ENVIRONMENT_ALIASES, **COMPATIBLE_VARIABLES})
def test_a_name_of_another_system_is_understood_in_its_unit_and_named_as_the_origin(
    tmp_path: Path, variable: str
) -> None:
    text, shown = FOREIGN_VARIABLES[variable]
    name, _ = {**ENVIRONMENT_ALIASES, **COMPATIBLE_VARIABLES}[variable]
    switch = COMPATIBLE if variable in COMPATIBLE_VARIABLES else {}

    loaded = load_settings_for_test(
        tmp_path, **{variable: text}, **OTHER_VARIABLES.get(variable, {}), **switch
    )

    assert row(loaded, name).value == shown
    assert row(loaded, name).origin == f"{variable} in the environment"


@pytest.mark.parametrize("variable", COMPATIBLE_VARIABLES)
@pytest.mark.parametrize("switch", [{}, {"LONGSHORE_COMPAT_ENV": "no"}], ids=["default", "off"])
def test_a_name_that_another_program_may_have_is_not_read_by_default(
    tmp_path: Path, variable: str, switch: dict[str, str]
) -> None:
    text, _ = FOREIGN_VARIABLES[variable]
    others = OTHER_VARIABLES.get(variable, {}) | switch
    foreign = {name for name in others if not name.startswith("LONGSHORE_")}
    own = {name: value for name, value in others.items() if name not in foreign}
    own.pop("LONGSHORE_ALERTS_SLACK_CHANNEL", None)  # incomplete alone

    loaded = load_settings_for_test(tmp_path, **{variable: text}, **own)

    assert loaded.settings == load_settings_for_test(tmp_path, **own).settings
    assert unread_variables(loaded.settings, {variable: text}) == [variable]


@pytest.mark.parametrize("value", ["true", "1", "yes", "on", "T", "Y"])
def test_every_way_to_switch_the_other_names_on_reads_them(tmp_path: Path, value: str) -> None:
    loaded = load_settings_for_test(tmp_path, LONGSHORE_COMPAT_ENV=value, TENANT_ID="acme")

    assert (loaded.settings.compat_env, loaded.settings.tenant) == (True, "acme")
    assert unread_variables(loaded.settings, {"TENANT_ID": "acme"}) == []


def test_the_file_and_a_flag_switch_the_other_names_too(tmp_path: Path) -> None:
    in_file = load_settings_for_test(tmp_path, file="compat_env = true", TENANT_ID="acme")
    by_flag = load_settings_for_test(tmp_path, flags={"compat_env": False}, TENANT_ID="acme")

    assert (in_file.settings.tenant, by_flag.settings.tenant) == ("acme", "default")


def test_the_file_of_a_token_that_is_not_read_is_not_opened(tmp_path: Path) -> None:
    foreign = {"SLACK_BOT_TOKEN_FILE": "/nonexistent", "ALERT_CHANNEL": "C0"}

    assert load_settings_for_test(tmp_path, **foreign).settings.alerts.slack_token is None
    (problem,) = refused(tmp_path, **foreign, **COMPATIBLE)
    assert "'/nonexistent' cannot be read" in problem


@pytest.mark.parametrize("variable", VARIABLES_OF_A_WORKER)
def test_every_variable_of_such_a_worker_is_understood_or_listed_as_ignored(variable: str) -> None:
    tables = (ENVIRONMENT_ALIASES, COMPATIBLE_VARIABLES, IGNORED_VARIABLES)

    assert [variable in table for table in tables].count(True) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"SLACK_BOT_TOKEN": TOKEN},
        {"ALERT_CHANNEL": "general"},
        {"SQS_QUEUE_URL": f"{URL}/agents"},
    ],
)
def test_what_says_nothing_by_itself_is_passed_over(tmp_path: Path, values: dict[str, str]) -> None:
    assert (
        load_settings_for_test(tmp_path, **values, **COMPATIBLE).settings
        == load_settings_for_test(tmp_path, **COMPATIBLE).settings
    )


def test_a_bot_that_is_complete_goes_before_a_webhook_and_our_own_webhook_before_both(
    tmp_path: Path,
) -> None:
    theirs = {"SLACK_BOT_TOKEN": TOKEN, "ALERT_CHANNEL": "C0", "SLACK_WEBHOOK_URL": HOOK}
    theirs |= COMPATIBLE

    bot = load_settings_for_test(tmp_path, **theirs).settings.alerts
    ours = load_settings_for_test(
        tmp_path, **theirs, file=f'[alerts]\nslack_webhook = "{HOOK}"'
    ).settings.alerts

    assert (bot.slack_channel, bot.slack_webhook) == ("C0", None)
    assert (ours.slack_channel, ours.slack_token) == (None, None)


@pytest.mark.parametrize("name", ["agents", "longshore-prod-agents-low", "agents/"])
def test_the_queue_is_read_from_its_url(tmp_path: Path, name: str) -> None:
    loaded = load_settings_for_test(
        tmp_path, LONGSHORE_BACKEND="AWS", SQS_QUEUE_URL=f"{URL}/{name}", **COMPATIBLE
    )

    assert loaded.settings.worker.queues == ("agents",)


def test_a_heartbeat_can_ask_for_the_interval_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = heartbeat_interval_sec()
    monkeypatch.setenv("SQS_HEARTBEAT_INTERVAL_MS", "45000")
    unread = heartbeat_interval_sec()
    monkeypatch.setenv("LONGSHORE_COMPAT_ENV", "true")

    assert (usual, unread, heartbeat_interval_sec()) == (300, 300, 45)


def on_aws(**more: str) -> dict[str, Any]:
    return {"LONGSHORE_BACKEND": "aws", **more}


@pytest.mark.parametrize("environment", ["prod-eu", "Prod", "prod_eu", "1prod", "p" * 21])
def test_a_stage_that_could_be_taken_for_anothers_or_not_be_named_is_refused_on_aws(
    tmp_path: Path, environment: str
) -> None:
    (problem,) = refused(tmp_path, **on_aws(LONGSHORE_ENVIRONMENT=environment))

    assert problem.startswith(f"environment ({environment}) ")
    assert "no '-': `prod-eu` is `prodeu`" in problem
    assert (
        load_settings_for_test(tmp_path, LONGSHORE_ENVIRONMENT=environment).settings.environment
        == environment
    )


def test_a_queue_whose_name_is_too_long_for_sqs_is_refused_on_aws(tmp_path: Path) -> None:
    fits = "q" * 53
    values = on_aws(LONGSHORE_ENVIRONMENT="prod", LONGSHORE_WORKER_QUEUES=f"{fits},{fits}qq")

    (problem,) = refused(tmp_path, **values)

    assert problem.startswith(f"worker.queues ({fits}qq) is too long for AWS by 2 characters")
