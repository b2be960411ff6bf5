"""What holds for every test: no settings from outside, readable contract failures, calm hypothesis.

A developer's own account or settings must neither help a test nor be harmed by
one, so each test starts without any of them.
"""

import functools
import logging
import os
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import certifi
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

# Thousands of small databases are made and synced, which takes most of the time on a disk and none
# in memory. What must be on the disk when the power goes is seen by tests/power, from each write.
_MEMORY = Path("/dev/shm")
_ENOUGH_BYTES = 4 * 1024**3

_FOREIGN = ("AWS_", "LONGSHORE_")


def _holds_all(folder: Path) -> bool:
    """Whether a folder has room for what tests write, and lets them start the scripts in it."""
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        return False
    found = os.statvfs(folder)
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= _ENOUGH_BYTES


if "TMPDIR" not in os.environ and _holds_all(_MEMORY):
    tempfile.tempdir = str(_MEMORY)

# A client reads every authority of the world before its first request, 40 ms each time. Tests make
# thousands of clients, and none of these speaks TLS: those of AWS are given one authority to read,
# the others share what was read once.
ssl.create_default_context = functools.cache(ssl.create_default_context)


@pytest.fixture(scope="session")
def _one_authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    end = "-----END CERTIFICATE-----\n"
    path = tmp_path_factory.mktemp("tls") / "one-authority.pem"
    path.write_text(Path(certifi.where()).read_text().partition(end)[0] + end)
    return path


@pytest.fixture(autouse=True)
def _no_settings_from_outside(_one_authority: Path) -> Iterator[None]:
    # A patch of its own: a test that undoes its `monkeypatch` must not bring the variables back.
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
            patch.delenv(name)
        # The AWS libraries also look into files and ask the machine's metadata service.
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CA_BUNDLE", str(_one_authority))
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
