"""Settings of the health check and its alerts; secrets are never shown."""

import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from longshore.core.health import HealthPolicy
from longshore.errors import ConfigurationError
from longshore.settings import Settings, describe
from tests.factories import SECOND
from tests.unit.settings_loading import load_settings_for_test, row

TOKEN = "xoxb-not-for-anybody"
SLACK_HOOK = "https://hooks.slack.com/services/T0/B0/not-for-anybody"
HOOK = "https://alerts.example/not-for-anybody"
SECRET = "not-for-anybody-" + "x" * 32


def load_alert_settings(**settings: str) -> dict[str, str]:
    return {f"LONGSHORE_{name.upper()}": value for name, value in settings.items()}


def refused(folder: Path, **environ: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load_settings_for_test(folder, **load_alert_settings(**environ))
    shown = "".join(traceback.format_exception(caught.value))
    assert "not-for-anybody" not in shown
    return list(caught.value.problems)


def test_the_defaults_are_those_of_the_policy_and_no_alert_is_sent() -> None:
    settings, policy = Settings(), HealthPolicy()

    assert settings.health.longest_run == policy.longest_run
    assert settings.health.healthy_within == policy.healthy_within
    assert settings.health.warning_within == policy.warning_within
    assert settings.health.every == 300 * SECOND
    assert settings.health.cool_down == 3600 * SECOND
    assert settings.alerts.timeout == 20 * SECOND
    assert settings.alerts.slack_token is settings.alerts.slack_webhook is None
    assert settings.alerts.webhook_url is settings.alerts.slack_channel is None
    assert settings.alerts.webhook_secrets == ()


@pytest.mark.parametrize(
    ("environ", "checks"),
    [
        ({}, False),
        ({"environment": "prod"}, True),
        ({"environment": "prod", "health_enabled": "false"}, False),
        ({"health_enabled": "TRUE"}, True),
        ({"health_enabled": "auto"}, False),
    ],
)
def test_health_is_checked_outside_of_dev_unless_it_is_set(
    tmp_path: Path, environ: dict[str, str], checks: bool
) -> None:
    assert (
        load_settings_for_test(tmp_path, **load_alert_settings(**environ)).settings.checks_health
        is checks
    )


@pytest.mark.parametrize(("written", "checks"), [("true", True), ("false", False)])
def test_it_can_be_a_truth_value_in_the_file(tmp_path: Path, written: str, checks: bool) -> None:
    loaded = load_settings_for_test(
        tmp_path, file=f"environment = 'prod'\n[health]\nenabled = {written}\n"
    )

    assert loaded.settings.checks_health is checks
    assert row(loaded, "health.enabled").value == written


@pytest.mark.parametrize("file", ["[health]\nenabled = 1", "[health]\nenabled = 'maybe'"])
def test_anything_else_is_no_answer(tmp_path: Path, file: str) -> None:
    with pytest.raises(ConfigurationError, match=r"health\.enabled"):
        load_settings_for_test(tmp_path, file=file)


def test_all_ways_of_alerting_can_be_set(tmp_path: Path) -> None:
    alerts = load_settings_for_test(
        tmp_path,
        **load_alert_settings(
            alerts_slack_token=TOKEN,
            alerts_slack_channel="#ops",
            alerts_webhook_url="http://alertbot:8080/hook",
            alerts_webhook_secrets=f"{SECRET}, {SECRET}2",
        ),
    ).settings.alerts

    assert alerts.slack_token is not None
    assert alerts.slack_token.get_secret_value() == TOKEN
    assert alerts.slack_channel == "#ops"
    assert [item.get_secret_value() for item in alerts.webhook_secrets] == [SECRET, f"{SECRET}2"]


def test_no_secret_is_shown(tmp_path: Path) -> None:
    loaded = load_settings_for_test(
        tmp_path,
        **load_alert_settings(
            alerts_slack_webhook=SLACK_HOOK,
            alerts_webhook_url=HOOK,
            alerts_webhook_secrets=f"{SECRET},{SECRET}",
        ),
    )

    shown = f"{describe(loaded)} {loaded!r} {loaded.settings!s} {asdict(loaded.settings)}"

    assert "not-for-anybody" not in shown
    assert row(loaded, "alerts.webhook_url").value == "**********"
    assert row(loaded, "alerts.webhook_secrets").value == "**********,**********"
    assert row(loaded, "alerts.slack_token").value == "none"


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"alerts_slack_token": TOKEN}, "alerts: slack_token needs slack_channel"),
        ({"alerts_slack_channel": "C1"}, "alerts: slack_channel needs slack_token"),
        ({"alerts_webhook_url": HOOK}, "alerts: webhook_url needs webhook_secrets"),
        ({"alerts_webhook_secrets": SECRET}, "alerts: webhook_secrets needs webhook_url"),
        (
            {
                "alerts_slack_token": TOKEN,
                "alerts_slack_channel": "C1",
                "alerts_slack_webhook": SLACK_HOOK,
            },
            "alerts: slack_token and slack_webhook would both alert",
        ),
        (
            {"health_healthy_within": "20m"},
            "health: warning_within must be no shorter than healthy_within (20m), not 10m",
        ),
        (
            {"environment": "prod", "health_every": "20s"},
            "alerts.timeout (20s) must be shorter than health.every (20s)",
        ),
        (
            {"environment": "prod", "health_healthy_within": "20s"},
            "worker.renew_every (20s) must be shorter than health.healthy_within (20s)",
        ),
    ],
)
def test_what_contradicts_each_other_is_refused_with_both_names(
    tmp_path: Path, environ: dict[str, str], problem: str
) -> None:
    (loaded,) = refused(tmp_path, **environ)

    assert loaded.startswith(problem)


def test_what_only_a_check_would_mind_is_no_problem_where_there_is_none(tmp_path: Path) -> None:
    loaded = load_settings_for_test(
        tmp_path, **load_alert_settings(health_every="20s", health_healthy_within="20s")
    )

    assert not loaded.settings.checks_health


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"alerts_slack_token": f"{TOKEN} x"}, "alerts.slack_token: a token has only visible"),
        ({"alerts_slack_token": f"{TOKEN}é"}, "alerts.slack_token: a token has only visible"),
        ({"alerts_slack_channel": "two words"}, "alerts.slack_channel: 'two words' is not a"),
        ({"alerts_slack_webhook": SLACK_HOOK.replace("https", "http")}, "alerts.slack_webhook: "),
        ({"alerts_slack_webhook": "not-for-anybody"}, "alerts.slack_webhook: must be a URL"),
        ({"alerts_webhook_url": "ftp://x/not-for-anybody"}, "alerts.webhook_url: must be a URL"),
        ({"alerts_webhook_url": "https:///not-for-anybody"}, "alerts.webhook_url: must be a URL"),
        ({"alerts_webhook_url": f"{HOOK} x"}, "alerts.webhook_url: must be a URL"),
        (
            {"alerts_webhook_url": "https://x:99999/not-for-anybody"},
            "alerts.webhook_url: must be a URL",
        ),
        (
            {"alerts_webhook_url": "https://x:0/not-for-anybody"},
            "alerts.webhook_url: must be a URL",
        ),
        ({"alerts_webhook_url": "https://[x/not-for-anybody"}, "alerts.webhook_url: must be a URL"),
        (
            {"alerts_webhook_url": "https://u:not-for-anybody@x/"},
            "alerts.webhook_url: must be a URL",
        ),
        ({"alerts_webhook_secrets": "not-for-anybody"}, "alerts.webhook_secrets: a signing"),
        ({"alerts_webhook_secrets": f"{SECRET},short"}, "alerts.webhook_secrets: a signing"),
    ],
)
def test_what_cannot_be_used_is_refused_and_a_secret_is_not_quoted(
    tmp_path: Path, environ: dict[str, str], problem: str
) -> None:
    (loaded,) = refused(tmp_path, **environ)

    assert loaded.startswith(problem)
    assert loaded.endswith("in the environment)")


@pytest.mark.parametrize(
    "file",
    [
        "slack_token = ['not-for-anybody']",
        "webhook_url = {a = 'not-for-anybody'}",
        "webhook_secrets = [['not-for-anybody']]",
        "webhook_secrets = {a = 'not-for-anybody'}",
    ],
)
def test_a_secret_of_the_wrong_kind_is_not_quoted_either(tmp_path: Path, file: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings_for_test(tmp_path, file=f"[alerts]\n{file}\n")

    shown = "".join(traceback.format_exception(caught.value))
    assert "not-for-anybody" not in shown
    assert "the value is not valid" in str(caught.value)


@pytest.mark.parametrize("name", ["SLACK_TOKEN", "SLACK_WEBHOOK", "WEBHOOK_URL", "WEBHOOK_SECRETS"])
def test_a_secret_of_alerts_cannot_be_passed_to_every_task(tmp_path: Path, name: str) -> None:
    passed: dict[str, Any] = {"worker_pass_environment": f"PATH,LONGSHORE_ALERTS_{name}"}

    (problem,) = refused(tmp_path, **passed)

    assert "is a credential" in problem
