"""Jobs to submit and scripts of children that several test files use."""

from datetime import timedelta

from longshore.core.documents import INLINE_LIMIT_BYTES
from longshore.testing.fake_runner import Script
from tests.unit.services.harness import make_task

MINUTE = timedelta(minutes=1)
HANGS = Script(ending=None)
STUBBORN = Script(ending=None, ignores_sigterm=True)

DIAMOND = (make_task("a"), make_task("b", "a"), make_task("c", "a"), make_task("d", "b", "c"))
# Too large to stay in a row.
LARGE = "x" * (INLINE_LIMIT_BYTES * 2)
LARGE_DIAMOND = (
    make_task("a"),
    make_task("b", "a"),
    make_task("c", "a", input={"argv": ["echo", LARGE]}),
    make_task("d", "b", "c"),
)
