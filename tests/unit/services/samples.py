"""Jobs to submit and scripts for children to play, as several files of tests need them."""

from datetime import timedelta

from longshore.core.values import INLINE_LIMIT_BYTES
from longshore.testing.runner import Script
from tests.unit.services.stage import a_task

MINUTE = timedelta(minutes=1)
HANGS = Script(ending=None)
STUBBORN = Script(ending=None, ignores_sigterm=True)

DIAMOND = (a_task("a"), a_task("b", "a"), a_task("c", "a"), a_task("d", "b", "c"))
# Too large to stay in a row.
LARGE = "x" * (INLINE_LIMIT_BYTES * 2)
LARGE_DIAMOND = (
    a_task("a"),
    a_task("b", "a"),
    a_task("c", "a", input={"argv": ["echo", LARGE]}),
    a_task("d", "b", "c"),
)
