"""``python -m verification.crash``."""

from __future__ import annotations

import sys

from verification.crash.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
