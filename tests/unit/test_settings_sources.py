"""Where settings come from, and whose word counts."""

from dataclasses import FrozenInstanceError
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.lease import LeasePolicy
from longshore.settings import Settings, describe, load_settings
from tests.factories import SECOND
from tests.unit.settings_loading import load_settings_for_test, row


def test_without_anything_given_all_are_defaults(tmp_path: Path) -> None:
    loaded = load_settings_for_test(tmp_path)

    assert loaded.settings == Settings()
    assert {row.origin for row in describe(loaded)} == {"default"}


def test_the_defaults_are_those_of_the_policies() -> None:
    settings = Settings()

    assert settings.worker.duration == LeasePolicy().duration == 45 * SECOND
    assert settings.retry.max_attempts == RetryPolicy().max_attempts


def test_a_bare_settings_object_reads_nothing_from_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LONGSHORE_APP", "elsewhere")
    monkeypatch.setenv("LONGSHORE_WORKER_CONCURRENCY", "9")

    settings = Settings()

    assert (settings.app, settings.worker.concurrency) == ("longshore", 3)


def test_the_environment_and_folder_of_the_process_are_read_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "longshore.toml").write_text('tenant = "acme"')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGSHORE_WORKER_CONCURRENCY", "9")

    settings = load_settings()

    assert (settings.tenant, settings.worker.concurrency) == ("acme", 9)


def test_a_setting_cannot_be_changed_afterwards() -> None:
    settings = Settings()

    with pytest.raises(FrozenInstanceError):
        settings.app = "other"
    with pytest.raises(FrozenInstanceError):
        settings.worker.concurrency = 5


FILE = "[worker]\nconcurrency = 4\n"
COMPATIBLE = {"LONGSHORE_COMPAT_ENV": "true"}


@pytest.mark.parametrize(
    ("values", "value", "origin"),
    [
        ({}, "3", "default"),
        ({"file": FILE}, "4", "longshore.toml"),
        (
            {"file": FILE, "MAX_CONCURRENT_CLAUDE": "5", **COMPATIBLE},
            "5",
            "MAX_CONCURRENT_CLAUDE in the environment",
        ),
        (
            {
                "file": FILE,
                "MAX_CONCURRENT_CLAUDE": "5",
                "LONGSHORE_WORKER_CONCURRENCY": "6",
                **COMPATIBLE,
            },
            "6",
            "LONGSHORE_WORKER_CONCURRENCY in the environment",
        ),
        (
            {
                "file": FILE,
                "LONGSHORE_WORKER_CONCURRENCY": "6",
                "flags": {"worker.concurrency": 7},
            },
            "7",
            "flag",
        ),
    ],
    ids=["default", "file", "foreign name", "own name", "flag"],
)
def test_the_nearest_word_counts_and_its_origin_is_shown(
    tmp_path: Path, values: dict[str, Any], value: str, origin: str
) -> None:
    loaded = row(load_settings_for_test(tmp_path, **values), "worker.concurrency")

    assert (loaded.value, loaded.origin) == (value, origin)
    assert loaded.variable == "LONGSHORE_WORKER_CONCURRENCY"


def test_a_flag_that_is_none_was_not_given(tmp_path: Path) -> None:
    loaded = load_settings_for_test(tmp_path, flags={"worker.concurrency": None}, file=FILE)

    assert loaded.settings.worker.concurrency == 4


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    loaded = load_settings_for_test(
        tmp_path, LONGSHORE_APP="", TENANT_ID="", LONGSHORE_CONFIG="", LONGSHORE_TYPO=""
    )

    assert loaded.settings == Settings()


def test_every_kind_of_value_is_read_from_the_environment(tmp_path: Path) -> None:
    settings = load_settings_for_test(
        tmp_path,
        LONGSHORE_DATA_DIR="/srv/longshore",
        LONGSHORE_BACKEND="SQLITE",
        LONGSHORE_LOG_LEVEL="WARNING",
        LONGSHORE_WORKER_QUEUES="default, slow",
        LONGSHORE_WORKER_TASK_TIMEOUT="300",
        LONGSHORE_WORKER_KEEP_WORK_DIRS="yes",
        LONGSHORE_SIZES_INPUT_BYTES="10MiB",
    ).settings

    assert settings.data_dir == Path("/srv/longshore")
    assert (settings.backend, settings.log_level) == ("sqlite", "warning")
    assert settings.worker.queues == ("default", "slow")
    assert settings.worker.task_timeout == 300 * SECOND
    assert settings.worker.keep_work_dirs is True
    assert settings.sizes.input_bytes == 10 * 2**20


def test_an_attempt_may_take_an_hour_unless_its_definition_says_otherwise(tmp_path: Path) -> None:
    settings = load_settings_for_test(tmp_path).settings

    assert settings.worker.task_timeout == timedelta(hours=1)


def test_every_kind_of_value_is_read_from_the_file(tmp_path: Path) -> None:
    settings = load_settings_for_test(
        tmp_path,
        file="""
            data_dir = "data"
            [worker]
            queues = ["default", "slow"]
            task_timeout = "1h30m"
            drain_grace = 2.5
            [sizes]
            input_bytes = 2048
            result_bytes = "1KiB"
        """,
    ).settings

    assert settings.data_dir == Path("data")
    assert settings.worker.queues == ("default", "slow")
    assert settings.worker.task_timeout == timedelta(hours=1, minutes=30)
    assert settings.stop_timeout == 7.5 * SECOND
    assert settings.sizes.input_bytes == 2048


def test_the_home_folder_is_understood_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/user")

    settings = load_settings_for_test(tmp_path, file='data_dir = "~/longshore"').settings

    assert settings.data_dir == Path("/home/user/longshore")


def test_another_file_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(FILE)

    loaded = load_settings_for_test(
        tmp_path, file="this file is not even read", LONGSHORE_CONFIG="other.toml"
    )

    assert row(loaded, "worker.concurrency").origin == "other.toml"


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("VISIBILITY_EXTENSION_INTERVAL", "15000", "worker.renew_every", "15s"),
        ("VISIBILITY_EXTENSION_AMOUNT", "60", "worker.extend_by", "1m"),
        ("CLAUDE_TIMEOUT", "200500", "worker.task_timeout", "3m20s500ms"),
        ("CLAUDE_TIMEOUT", "10m", "worker.task_timeout", "10m"),
        ("MAX_CONCURRENT_CLAUDE", "8", "worker.concurrency", "8"),
        ("WAIT_TIME_SECONDS", "5", "worker.poll_wait", "5s"),
        ("MAX_MESSAGE_RETRIES", "7", "retry.max_attempts", "7"),
        ("TENANT_ID", "acme", "tenant", "acme"),
        ("APP_NAME", "pipeline", "app", "pipeline"),
    ],
)
def test_a_name_of_another_system_keeps_its_unit_there(
    tmp_path: Path, variable: str, text: str, name: str, value: str
) -> None:
    loaded = row(load_settings_for_test(tmp_path, **{variable: text}, **COMPATIBLE), name)

    assert (loaded.value, loaded.origin) == (value, f"{variable} in the environment")
