"""Children that misbehave, each in its own way."""

import os
import signal
import socket
import sys
import time

FOR_EVER_S = 1000


def print_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def ignores_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print_ready()
    _sleep_forever()


def leaves_a_daemon_with_the_pipes() -> str:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _sleep_forever()
        os._exit(0)
    os.wait()
    return "done"


def leaves_a_daemon_without_a_trace() -> str:
    """Another session, no pipes, an empty environment: nothing says whose it is."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 100)
            os.execve("/bin/sleep", ["sleep", str(FOR_EVER_S)], {})  # noqa: S606
        os._exit(0)
    os.wait()
    return "done"


def hides_a_daemon_and_stays() -> None:
    leaves_a_daemon_without_a_trace()
    print_ready()
    _sleep_forever()


def forks_a_hundred() -> str:
    for number in range(100):
        if os.fork() == 0:
            if number % 2:
                os.setsid()
            _sleep_forever()
    return "done"


def allocates(megabytes: int) -> int:
    return len(bytearray(megabytes * 2**20))


def grows_in_many(processes: int, megabytes: int) -> None:
    for _ in range(processes):
        if os.fork() == 0:
            stored = b"x" * (megabytes * 2**20)
            _sleep_forever(stored)
    _sleep_forever()


def writes(megabytes: int) -> None:
    piece = b"x" * 2**20
    for _ in range(megabytes):
        os.write(1, piece)


def writes_one_line(megabytes: int) -> None:
    writes(megabytes)
    os.write(1, b"\n")


def closes_its_pipes_and_sleeps() -> None:
    print_ready()
    os.closerange(0, 100)
    _sleep_forever()


def segfaults() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def exits_without_a_word() -> None:
    os._exit(0)


def stops_itself() -> None:
    print_ready()
    os.kill(os.getpid(), signal.SIGSTOP)


def writes_a_file(kilobytes: int) -> None:
    with open("big", "wb") as file:
        for _ in range(kilobytes):
            file.write(b"x" * 1024)
            file.flush()


def burns_cpu() -> None:
    while True:
        pass


def opens_files(count: int) -> int:
    return len([open(os.devnull) for _ in range(count)])


def hands_on_its_pipes(address: str) -> str:
    """Pass output, errors and channel to the listening process; end when it has them."""
    with socket.socket(socket.AF_UNIX) as outsider:
        outsider.connect(address)
        socket.send_fds(outsider, [b"pipes"], [1, 2, 3])
        outsider.recv(1)
    return "done"


def is_a_terminal() -> list[bool]:
    sys.stdout.write("to the terminal\n")
    sys.stderr.write("errors too\n")
    return [os.isatty(number) for number in (0, 1, 2)]


def _sleep_forever(*_references: object) -> None:
    while True:
        time.sleep(FOR_EVER_S)  # noqa: TID251


def fork_bomb(count: int, *, detached: bool) -> None:
    """Every process forks again and again, until there are ``count``; not more, to be safe."""
    tokens, writer = os.pipe()
    os.write(writer, b"." * (count - 1))
    os.set_blocking(tokens, False)
    while True:
        try:
            os.read(tokens, 1)
        except BlockingIOError:
            _sleep_forever()
        if os.fork() == 0 and detached:
            os.setsid()
