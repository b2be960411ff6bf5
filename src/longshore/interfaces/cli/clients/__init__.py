"""Where the command line asks: the files of this machine, or a server; the answers are the same."""
