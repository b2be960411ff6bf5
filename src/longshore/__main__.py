"""Runs the command line: ``python -m longshore``."""

from longshore.interfaces.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
