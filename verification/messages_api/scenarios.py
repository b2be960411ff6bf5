"""Scenarios: which script a request takes its step from, and what each was asked.

A scenario is a place on the server (a prefix of the path) with its own scripts and its own record,
so that one server serves many jobs at once and a test reads only of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from verification.messages_api.requests import Request
from verification.messages_api.script import Script, Step

KEY = re.compile(r"[A-Za-z0-9_.-]{1,100}\Z")
# Enough of a prompt to know it by.
_SHOWN_CHARACTERS = 80


class NoScript(Exception):
    """A request without a scripted answer; the text names it."""


@dataclass(slots=True)
class Scenario:
    """Scripts in order of preference, how far each has been walked, and the requests so far."""

    scripts: tuple[Script, ...]
    requests: list[Request] = field(default_factory=list)
    _steps_taken: dict[tuple[int, str | None], int] = field(default_factory=dict)
    _script_by_session: dict[str | None, Script] = field(default_factory=dict)

    def set_scripts(self, scripts: tuple[Script, ...]) -> None:
        """Answer from these from now on, each from its start; the requests so far stay."""
        self.scripts = scripts
        self._steps_taken.clear()
        self._script_by_session.clear()

    def next_step(self, request: Request) -> Step:
        """The step that this request takes.

        Raises:
            NoScript: none is meant for it.
        """
        script = self._script_for(request)
        walker = None
        if request.agent_id is not None:
            walker = request.agent_id
        elif script.per_session:
            walker = request.session_id
        folder = (id(script), walker)
        step = script.steps[min(self._steps_taken.get(folder, 0), len(script.steps) - 1)]
        self._steps_taken[folder] = self._steps_taken.get(folder, 0) + 1
        return step

    def _script_for(self, request: Request) -> Script:
        parent = self._script_by_session.get(request.session_id)
        of_agents = parent.agents if request.agent_id is not None and parent else ()
        candidates = of_agents or self.scripts
        fitting = (script for script in candidates if script.steps and script.matches(request))
        script = next(fitting, None)
        if script is None:
            requested = request.first_prompt[:_SHOWN_CHARACTERS]
            message = f"no script of scenario {request.scenario!r} fits the prompt {requested!r}"
            raise NoScript(message)
        if request.agent_id is None:
            self._script_by_session[request.session_id] = script
        return script
