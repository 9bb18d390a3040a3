"""The results as one SVG: bars of the medians with whiskers to the 99th percentile, and the phases of ours stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from tests.bench import breakdown
from tests.bench.limits import LIMITS
from tests.bench.report import figure, groups
from tests.bench.samples import Operation, Results, median, percentile, ratio
from tests.bench.scenarios import GO, OURS

WIDTH, LEFT, RIGHT, MARGIN = 1060, 250, 390, 24  # pixels: the whole, the labels, the figures after the bars, the border
_BAR, _GAP, _TITLE = 15, 8, 26
_SIDES = ("#3465a4", "#a0a7b0", "#c17d11", "#75507b", "#4e9a06")
_PHASES = (
    "#babdb6",
    "#204a87",
    "#6b7280",
    "#3465a4",
    "#4e9a06",
    "#c17d11",
    "#75507b",
    "#0e8a8a",
    "#b3323a",
    "#c9b037",
    "#8fbf9f",
    "#b4b9c0",
)


def svg(results: Results, sides: Sequence[str], facts: Mapping[str, str], rounds: int) -> str:
    """The chart; every group of operations has a scale of its own."""
    drawing = _Drawing()
    drawing.text(MARGIN, 20, "railcni and the Go CNI plugins: milliseconds a call", size=18, bold=True)
    drawing.text(MARGIN, 22, f"{rounds} rounds; " + "; ".join(f"{k} {v}" for k, v in facts.items()), size=11)
    drawing.y += 8
    drawing.legend([*zip(sides, _SIDES, strict=False)])
    drawing.text(
        MARGIN, 20, "Bars end at the median, lines at the 99th percentile; figures: median, ratio, limit.", size=11
    )
    for group, operations in groups(results):
        _group(drawing, results, sides, group, operations)
    if results.breakdown:
        _breakdown(drawing, results)
    return drawing.document()


class _Drawing:
    """Shapes from top to bottom; `y` is where the next one begins."""

    def __init__(self) -> None:
        self.y = MARGIN
        self._shapes: list[str] = []

    def text(self, x: float, height: int, text: str, *, size: int = 12, bold: bool = False, end: bool = False) -> None:
        """A line of text that takes `height`; 0: beside what follows."""
        weight = ' font-weight="600"' if bold else ""
        anchor = ' text-anchor="end"' if end else ""
        y = self.y + (height or _BAR) - 4
        self._shapes.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{weight}{anchor}>{escape(text)}</text>')
        self.y += height

    def bar(self, x: float, width: float, colour: str, title: str = "") -> None:
        hint = f"<title>{escape(title)}</title>" if title else ""
        shape = f'x="{x:.1f}" y="{self.y + 1}" width="{max(width, 1):.1f}" height="{_BAR - 2}" fill="{colour}"'
        self._shapes.append(f"<rect {shape}>{hint}</rect>")

    def whisker(self, start: float, end: float) -> None:
        middle = self.y + _BAR / 2
        self._shapes.append(f'<path d="M{start:.1f} {middle}H{end:.1f}m0 -3v6" stroke="#222" fill="none"/>')

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        x: float = MARGIN
        for name, colour in entries:
            self.bar(x, _BAR - 2, colour)
            self.text(x + 18, 0, name)
            x += 34 + 7 * len(name)
        self.y += 22

    def document(self) -> str:
        height = self.y + MARGIN
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        )
        font = 'font-family="system-ui, sans-serif" fill="#222"'
        return "\n".join(
            [f"{head} {font}>", '<rect width="100%" height="100%" fill="#fff"/>', *self._shapes, "</svg>\n"]
        )


def _group(
    drawing: _Drawing, results: Results, sides: Sequence[str], group: str, operations: Sequence[Operation]
) -> None:
    drawing.y += 8
    drawing.text(MARGIN, _TITLE, group, size=14, bold=True)
    longest = max(percentile(results.times(o, side), 0.99) or 0.0 for o in operations for side in sides) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / longest
    for operation in operations:
        drawing.text(LEFT - 8, 0, operation.verb, end=True)
        for side, colour in zip(sides, _SIDES, strict=False):
            found = results.times(operation, side)
            middle, high = median(found), percentile(found, 0.99)
            if middle is None or high is None:
                continue
            drawing.bar(LEFT, middle * scale, colour, f"{operation.verb}, {side}: {middle:.2f} ms")
            drawing.whisker(LEFT + middle * scale, LEFT + high * scale)
            drawing.text(LEFT + high * scale + 8, 0, _figures(results, operation, side), size=11)
            drawing.y += _BAR
        drawing.y += _GAP


def _figures(results: Results, operation: Operation, side: str) -> str:
    shown = figure(median(results.times(operation, side)))
    if side != OURS:
        return shown
    to_go = ratio(results.times(operation, OURS), results.times(operation, GO))
    verdict = LIMITS[operation].verdict(results) if operation in LIMITS else ""
    return "; ".join(s for s in (shown, f"{figure(to_go, 2)} x {GO}" if to_go else "", verdict) if s)


def _breakdown(drawing: _Drawing, results: Results) -> None:
    """A bar of phases for each operation."""
    drawing.y += 8
    drawing.text(MARGIN, _TITLE, f"Where the time of {OURS} goes", size=14, bold=True)
    drawing.legend([*zip(breakdown.PHASES, _PHASES, strict=True)])
    medians = {
        operation: {phase: median([run[phase] for run in runs]) or 0.0 for phase in breakdown.PHASES}
        for operation, runs in results.breakdown.items()
    }
    scale = (WIDTH - LEFT - RIGHT) / (max(sum(phases.values()) for phases in medians.values()) or 1.0)
    for operation, phases in medians.items():
        drawing.text(LEFT - 8, 0, f"{operation.group.partition(',')[0]}: {operation.verb}", end=True)
        x: float = LEFT
        for (phase, value), colour in zip(phases.items(), _PHASES, strict=True):
            if value > 0:
                drawing.bar(x, value * scale, colour, f"{phase}: {value:.2f} ms")
                x += value * scale
        drawing.text(x + 8, 0, figure(sum(phases.values())), size=11)
        drawing.y += _BAR + _GAP
