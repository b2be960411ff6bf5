"""A module that meddles with the process it is loaded into."""

import atexit
import os
import signal
import sys

os.environ["LEFT_BY_A_MODULE"] = "1"  # noqa: TID251
os.environ.pop("PATH", None)  # noqa: TID251
signal.signal(signal.SIGTERM, signal.SIG_IGN)
atexit.register(lambda: sys.stdout.write("left by a module\n"))
