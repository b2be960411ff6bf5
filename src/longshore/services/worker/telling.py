"""What an attempt has told of itself so far: output, what it does, what it has used, a summary."""

from __future__ import annotations

from longshore.core.events.types import Activity, Usage
from longshore.ports.clock import Clock
from longshore.ports.output import Stream
from longshore.ports.runner import Active, Printed, Progressed, Summarised, Used
from longshore.services.worker.output import OutputPump

_SUMMARY_LINES = 1_000
_ACTIVITY_CHARACTERS = 200


class Telling:
    """Takes reports; progress and summaries are lines of output and what heartbeats tell, too."""

    def __init__(self, pump: OutputPump, clock: Clock) -> None:
        self._pump = pump
        self._clock = clock
        self.activity = Activity()
        self.usage = Usage()
        self.summaries: list[str] = []

    async def take(self, report: Printed | Active | Used | Progressed | Summarised) -> None:
        """Remember one report, or bring it to the output."""
        match report:
            case Printed(stream, data):
                await self._pump.add(stream, data)
            case Active(activity):
                self.activity = activity
            case Used(usage):
                self.usage = usage
            case Progressed():
                await self._say("progress", str(report))
            case Summarised(text):
                if len(self.summaries) < _SUMMARY_LINES:
                    self.summaries.append(text)
                await self._say("summary", text)

    async def _say(self, kind: str, text: str) -> None:
        shown = text[:_ACTIVITY_CHARACTERS]
        self.activity = Activity(type=kind, step_name=shown, timestamp=self._clock.now())
        await self._pump.add(Stream.LOG, f"{kind}: {text}\n".encode(errors="replace"))
