"""A real HTTP server on loopback that answers as a test says, and notes what it was sent."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What is answered to one request."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False  # until the server is closed
    hangs_up: bool = False


@dataclass(frozen=True, kw_only=True)
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def slack_ok() -> Answer:
    return Answer(body=b'{"ok":true,"channel":"C1","ts":"1.2"}')


def slack_error(code: str, status: int = 200, **headers: str) -> Answer:
    body = json.dumps({"ok": False, "error": code}).encode()
    return Answer(status=status, body=body, headers=headers)


class Server:
    """Gives its answers one after the other, the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [Answer()]
        self.received: list[Received] = []
        self._closing = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def answers_with(self, *answers: Answer) -> None:
        self.answers = list(answers)

    @contextmanager
    def running(self) -> Iterator["Server"]:
        thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self._closing.set()
            self._http.shutdown()
            thread.join()
            self._http.server_close()

    def _next(self, received: Received) -> Answer:
        self.received.append(received)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                self._answer(server._next(Received(path=self.path, headers=headers, body=body)))

            def do_GET(self) -> None:
                server._next(Received(path=f"GET {self.path}", headers={}, body=b""))
                self._answer(Answer())

            def _answer(self, answer: Answer) -> None:
                if answer.hangs:
                    server._closing.wait()
                if answer.hangs or answer.hangs_up:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                with suppress(OSError):  # who asked may not read it to its end
                    self.wfile.write(answer.body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler
