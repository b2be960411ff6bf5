"""``python -m longshore`` is the command line."""

if __name__ == "__main__":

    def _start() -> int:
        # Inside a function, because the package itself may import no interface.
        from longshore.interfaces.cli.main import main

        return main()

    raise SystemExit(_start())
