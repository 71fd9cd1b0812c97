"""The comparison as tables."""

from __future__ import annotations

import math

from rich.console import RenderableType
from rich.text import Text

from fastkernels.capture.comparison import Comparison
from fastkernels.capture.loads import SKEWS, STEP, Load
from fastkernels.capture.times import Times
from fastkernels.loader.golden import PHASES
from fastkernels.records import Capture
from fastkernels.report.layout import Column, heading, legend, table

_HOT = 4  # experts that are named for each layer
_LOADS = (
    Column("phase", "", right=False),
    Column("routing", "", right=False),
    Column("max / mean", "load of the hottest expert against the mean one, average over the layers"),
    Column("worst layer", "the same in the layer where it is largest"),
    Column("hottest %", "share of all choices that fall on the hottest expert, average over the layers"),
    Column("coldest %", "the same of the coldest expert"),
    Column("entropy", "of the shares, average over the layers, of the bits that even loads have"),
    Column("reached", f"experts that {STEP} tokens of one step choose"),
)
_TIMES = (
    Column("task", "", right=False),
    Column("case", "", right=False),
    Column("candidate", "", right=False),
    *(Column(f"{skew} us", "") for skew in SKEWS),
    Column("captured / uniform", "how much longer the same case takes with captured routing"),
)


def parts(found: Comparison) -> list[RenderableType]:
    rows = [_load(load) for load in found.loads]
    same, total = found.same_choice
    shown: list[RenderableType] = [
        *_title(found.capture),
        heading("Load of the experts"),
        table(_LOADS, rows),
    ]
    shown += [heading("Hot experts as captured, by layer"), _hot(found)]
    shown += [Text(), Text(f"{same} of {total} kept (token, layer) pairs choose the same experts again here")]
    columns = legend(_LOADS, rows)
    if found.times:
        timed = [_times(each) for each in found.times]
        shown += [heading("Times"), table(_TIMES, timed)]
        columns += legend(_TIMES, timed)
    return [*shown, Text(), *columns]


def _title(capture: Capture) -> list[RenderableType]:
    style = "bold yellow" if capture.weights == "random" else "bold"
    lines = [Text(capture.summary, style=style)]
    for phase in PHASES:
        tokens = capture.tokens[phase]
        counted = f"{tokens.seen} tokens counted in each of {len(capture.layers)} layers"
        kept = f"{tokens.kept} of them kept, {tokens.hidden} with hidden states"
        lines.append(Text(f"{phase}: {counted}, {kept}"))
    where = capture.environment
    lines.append(Text(f"captured on {where.device}, {where.started_at}, torch {where.torch}", style="dim"))
    return [*lines]


def _load(load: Load) -> list[str | Text]:
    return [
        load.phase,
        load.skew,
        f"{load.imbalance_L.mean():.2f}",
        f"{load.imbalance_L.max():.2f}",
        f"{100 * load.hottest_L.mean():.1f}",
        f"{100 * load.coldest_L.mean():.1f}",
        f"{load.entropy_L.mean():.2f} of {math.log2(load.share_LE.shape[1]):.2f}",
        str(load.reached),
    ]


def _hot(found: Comparison) -> RenderableType:
    columns = (Column("layer", "", right=False), *(Column(phase, "", right=False) for phase in PHASES))
    cells = [
        [name, *(_hottest(found.captured(phase), layer) for phase in PHASES)]
        for layer, name in enumerate(found.capture.layers)
    ]
    return table(columns, cells)


def _hottest(load: Load, layer: int) -> str:
    share_E, expert_E = load.share_LE[layer].sort(descending=True)
    named = zip(expert_E[:_HOT].tolist(), share_E[:_HOT].tolist())
    return "  ".join(f"{expert}: {100 * share:.1f} %" for expert, share in named)


def _times(each: Times) -> list[str | Text]:
    return [
        each.task,
        each.case,
        each.candidate,
        *(f"{each.us[skew]:.4g}" if skew in each.us else "" for skew in SKEWS),
        f"{each.ratio('captured'):.3f}",
    ]
