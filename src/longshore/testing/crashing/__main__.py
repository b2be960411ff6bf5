"""``python -m longshore.testing.crashing``."""

from __future__ import annotations

import sys

from longshore.testing.crashing.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
