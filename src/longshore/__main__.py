"""``python -m longshore`` is the command line."""

from longshore.interfaces.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
