"""Bar charts as SVG text, readable on light and on dark backgrounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _ROW, _HEAD = 760, 22, 52
_LABEL, _VALUE = 190, 90
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 15px; }
.quiet { fill: #59636e; }
.bar { fill: #8c959f; }
.ours { fill: #0969da; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; }
  .quiet { fill: #9198a1; }
  .bar { fill: #656c76; }
  .ours { fill: #4493f8; }
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row of a chart."""

    label: str
    value: float
    ours: bool


def bar_chart(title: str, note: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars in the sequence of ``bars``, from zero on a linear scale."""
    height = _HEAD + _ROW * len(bars) + 10
    longest = max((bar.value for bar in bars), default=0.0) or 1.0
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        f' viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{_attribute(title)}">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="8" y="20">{escape(title)}</text>',
        f'<text class="quiet" x="8" y="39">{escape(note)}</text>',
    ]
    for index, bar in enumerate(bars):
        top = _HEAD + index * _ROW
        width = max(1.0, (_WIDTH - _LABEL - _VALUE) * bar.value / longest)
        kind = "ours" if bar.ours else "bar"
        lines += [
            f'<text x="{_LABEL - 8}" y="{top + 15}" text-anchor="end">{escape(bar.label)}</text>',
            f'<rect class="{kind}" x="{_LABEL}" y="{top + 3}" width="{width:.1f}"'
            f' height="{_ROW - 6}" rx="2"/>',
            f'<text x="{_LABEL + width + 6:.1f}" y="{top + 15}">{number(bar.value)}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def number(value: float) -> str:
    """A figure with about three digits; a whole number without decimals."""
    if value == int(value):
        return f"{value:,.0f}"
    if abs(value) < 0.1:
        return f"{value:.3f}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def _attribute(text: str) -> str:
    return escape(text, {'"': "&quot;"})
