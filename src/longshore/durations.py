"""Durations as people write them; see ``core.durations``."""

from longshore.core.text.durations import format_duration, parse_duration

__all__ = ["format_duration", "parse_duration"]
