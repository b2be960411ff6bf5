"""What holds for every test: no settings from outside, readable contract failures, calm hypothesis.

A developer's own account or settings must neither help a test nor be harmed by
one, so each test starts without any of them.
"""

import functools
import logging
import os
import signal
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import certifi
import httpcore2
import pytest
from hypothesis import HealthCheck, Phase, settings

# A shell starts background jobs with SIGINT ignored, and nohup ignores SIGHUP. Both would be
# inherited by every process that a test starts and then wants to end with these signals.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(
            _number,
            signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL,
        )

# The suites are a library, and pytest explains a failed assert only in registered modules.
pytest.register_assert_rewrite("longshore.testing.contracts")

# No deadline anywhere: a busy machine is not a bug. In CI the examples are the same each time.
settings.register_profile("dev", deadline=None)
settings.register_profile(
    "ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# A planted fault is found by the first example that fails, and by the same one each time.
settings.register_profile(
    "planted", parent=settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# The tests create and sync thousands of small databases, which is slow on a disk and fast in
# memory. tests/power checks durability from the recorded writes.
_MEMORY = Path("/dev/shm")
_ENOUGH_BYTES = 4 * 1024**3

_FOREIGN = ("AWS_", "LONGSHORE_")


def _has_enough_memory(folder: Path) -> bool:
    """Whether a folder has enough space for the tests and allows them to execute files."""
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        return False
    status = os.statvfs(folder)
    return not status.f_flag & os.ST_NOEXEC and status.f_bavail * status.f_frsize >= _ENOUGH_BYTES


if "TMPDIR" not in os.environ and _has_enough_memory(_MEMORY):
    tempfile.tempdir = str(_MEMORY)

# A client loads all certificate authorities before its first request, which takes 40 ms. The tests
# create thousands of clients, and none uses TLS: those of AWS load one authority, the others share
# one context.
ssl.create_default_context = functools.cache(ssl.create_default_context)
httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)


@pytest.fixture(scope="session")
def _shared_certificate_authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    end = "-----END CERTIFICATE-----\n"
    path = tmp_path_factory.mktemp("tls") / "one-authority.pem"
    path.write_text(Path(certifi.where()).read_text().partition(end)[0] + end)
    return path


@pytest.fixture(autouse=True)
def _no_settings_from_outside(_shared_certificate_authority: Path) -> Iterator[None]:
    # A patch of its own: a test that undoes its `monkeypatch` must not bring the variables back.
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
            patch.delenv(name)
        # The AWS libraries also look into files and ask the machine's metadata service.
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CA_BUNDLE", str(_shared_certificate_authority))
        yield


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    # The command line configures logging for its process, which in a test also runs other tests.
    ours, root = logging.getLogger("longshore"), logging.getLogger()
    levels, handlers = (ours.level, root.level), root.handlers[:]
    yield
    ours.setLevel(levels[0])
    root.setLevel(levels[1])
    root.handlers[:] = handlers
