"""What holds for every test: no settings from outside, readable contract failures, calm hypothesis.

A developer's own account or settings must neither help a test nor be harmed by
one, so each test starts without any of them.
"""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# The suites are a library, and pytest explains a failed assert only in modules it was told of.
pytest.register_assert_rewrite("longshore.testing.contracts")

# No deadline anywhere: a busy machine is not a bug. In CI the examples are the same each time.
settings.register_profile("dev", deadline=None)
settings.register_profile(
    "ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

_FOREIGN = ("AWS_", "LONGSHORE_")


@pytest.fixture(autouse=True)
def _no_settings_from_outside() -> Iterator[None]:
    # A patch of its own: a test that undoes its `monkeypatch` must not bring the variables back.
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
            patch.delenv(name)
        # The AWS libraries also look into files and ask the machine's metadata service.
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    # The command line sets it up for its process; in a test that process goes on to other tests.
    ours, root = logging.getLogger("longshore"), logging.getLogger()
    levels, handlers = (ours.level, root.level), root.handlers[:]
    yield
    ours.setLevel(levels[0])
    root.setLevel(levels[1])
    root.handlers[:] = handlers
