"""Charts as SVG: text that a page embeds, without a script and without a library.

Colours are classes of the page's style sheet (page.html.j2), so that light and dark are one file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from fastkernels.report.document import Bar, Scatter

_BAR_W, _BAR_H = 240, 16
_W, _H = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 52
_STEPS = (1, 2, 5)  # of each decade, with a label where there is room


def reach(bars: Iterable[Bar]) -> float:
    """How far the common scale of these bars goes to either side of 1, as a ratio: at least 1.05."""
    values = [v for bar in bars for v in (bar.value, bar.mean, *(bar.ends or ())) if v is not None and v > 0]
    return max(1.05, *(max(v, 1 / v) for v in values)) if values else 1.05


def bar(of: Bar, reach: float) -> str:
    """From 1 in the middle to the value, with a thin line over its interval and a mark at the mean."""

    def at(ratio: float) -> float:
        part = math.log(min(max(ratio, 1 / reach), reach)) / math.log(reach)
        return round(_BAR_W / 2 * (1 + 0.96 * part), 2)

    middle, value = at(1.0), at(of.value)
    drawn = [
        f'<rect class="bar {of.tone}" x="{min(middle, value)}" y="3" '
        f'width="{max(abs(value - middle), 1.0):.2f}" height="10"/>',
        f'<line class="axis" x1="{middle}" x2="{middle}" y1="0" y2="{_BAR_H}"/>',
    ]
    if of.ends is not None:
        low, high = map(at, of.ends)
        drawn.append(f'<line class="whisker" x1="{low}" x2="{high}" y1="8" y2="8"/>')
    if of.mean is not None:
        drawn.append(f'<line class="mean" x1="{at(of.mean)}" x2="{at(of.mean)}" y1="0" y2="{_BAR_H}"/>')
    told = f"{of.value:.3f}" + (f", mean {of.mean:.3f}" if of.mean is not None else "")
    # The cell beside it has the number: a screen reader reads that.
    return (
        f'<svg class="bars" viewBox="0 0 {_BAR_W} {_BAR_H}" preserveAspectRatio="none" aria-hidden="true">'
        f"<title>{told}</title>{''.join(drawn)}</svg>"
    )


def scatter(chart: Scatter) -> str:
    """Two logarithmic axes; lines of one slope are parallel to the diagonal."""
    xs = _span([p.x for p in chart.points])
    # The first line is always seen: its end is in the picture.
    ys = _span([*(p.y for p in chart.points), *(line.slope * xs[1] / 1.3 for line in chart.lines[:1])])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log(x) - math.log(xs[0])) / (math.log(xs[1]) - math.log(xs[0]))
        up = (math.log(y) - math.log(ys[0])) / (math.log(ys[1]) - math.log(ys[0]))
        width, height = _W - _LEFT - _RIGHT, _H - _TOP - _BOTTOM
        return round(_LEFT + across * width, 1), round(_TOP + (1 - up) * height, 1)

    drawn = [
        f'<rect class="plot" x="{_LEFT}" y="{_TOP}" width="{_W - _LEFT - _RIGHT}" '
        f'height="{_H - _TOP - _BOTTOM}"/>'
    ]
    for x in _ticks(xs):
        at, _ = place(x, ys[0])
        drawn += [
            f'<line class="grid" x1="{at}" x2="{at}" y1="{_TOP}" y2="{_H - _BOTTOM}"/>',
            f'<text x="{at}" y="{_H - _BOTTOM + 16}" text-anchor="middle">{x:g}</text>',
        ]
    for y in _ticks(ys):
        _, at = place(xs[0], y)
        drawn += [
            f'<line class="grid" x1="{_LEFT}" x2="{_W - _RIGHT}" y1="{at}" y2="{at}"/>',
            f'<text x="{_LEFT - 6}" y="{at + 4}" text-anchor="end">{y:g}</text>',
        ]
    labels = []
    for number, line in enumerate(chart.lines):
        begin, end = max(xs[0], ys[0] / line.slope), min(xs[1], ys[1] / line.slope)
        if begin >= end:
            continue  # it does not cross what is shown
        (x1, y1), (x2, y2) = place(begin, begin * line.slope), place(end, end * line.slope)
        drawn.append(f'<line class="reference" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>')
        part = 0.96 - 0.16 * number  # of the way: labels of near lines do not meet
        x, y = x1 + part * (x2 - x1), y1 + part * (y2 - y1)
        labels.append(
            f'<text class="label" x="{x - 6:.1f}" y="{y - 4:.1f}" text-anchor="end">'
            f"{escape(line.label)}</text>"
        )
    for point in chart.points:
        x, y = place(point.x, point.y)
        drawn.append(_mark(x, y, point.tone, point.told))
    drawn += [
        *labels,
        f'<text class="title" x="{(_LEFT + _W - _RIGHT) / 2}" y="{_H - 10}" text-anchor="middle">'
        f"{escape(chart.x)}</text>",
        f'<text class="title" transform="translate(14 {(_TOP + _H - _BOTTOM) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(chart.y)}</text>',
    ]
    return (
        f'<svg class="scatter" viewBox="0 0 {_W} {_H}" role="img" aria-label="{escape(chart.told)}">'
        f"{''.join(drawn)}</svg>"
    )


def _mark(x: float, y: float, tone: str, told: str) -> str:
    """A triangle up for good, one down for bad, a circle else: not told apart by colour alone."""
    shapes = {
        "good": f'<path d="M{x} {y - 5}l5 9h-10z"',
        "bad": f'<path d="M{x} {y + 5}l5 -9h-10z"',
    }
    begun = shapes.get(tone, f'<circle cx="{x}" cy="{y}" r="4"')
    return f'{begun} class="point {tone}"><title>{escape(told)}</title></{begun[1:].split()[0]}>'


def _span(values: Sequence[float]) -> tuple[float, float]:
    """A little more than all values."""
    return min(values) / 1.3, max(values) * 1.3


def _ticks(span: tuple[float, float]) -> list[float]:
    """At most about eight numbers of one digit within the span."""
    first, last = math.floor(math.log10(span[0])), math.ceil(math.log10(span[1]))
    steps = _STEPS if last - first <= 3 else (1,)
    found = [step * 10.0**decade for decade in range(first, last + 1) for step in steps]
    return [value for value in found if span[0] <= value <= span[1]]
