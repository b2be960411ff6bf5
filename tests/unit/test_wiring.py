"""What is checked when services are opened."""

import asyncio
import sys
from pathlib import Path

import pytest

from longshore.errors import ConfigurationError
from longshore.settings import load_settings
from longshore.wiring.services import open_services


def test_a_missing_slack_package_is_reported_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "slack_sdk", None)
    flags = {"alerts.slack_webhook": "https://hooks.slack.com/services/x", "backend": "memory"}
    settings = load_settings({**flags, "data_dir": str(tmp_path)}, environ={}, cwd=tmp_path)

    async def start() -> None:
        async with open_services(settings):
            pass

    with pytest.raises(ConfigurationError, match=r"longshore\[slack\]"):
        asyncio.run(start())
