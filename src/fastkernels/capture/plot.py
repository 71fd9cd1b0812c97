"""The comparison as a picture: shares by favourite, the captured load of every layer, times if known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastkernels.capture.comparison import Comparison
from fastkernels.capture.loads import SKEWS
from fastkernels.errors import MissingExtraError, UsageError
from fastkernels.layout import install_line
from fastkernels.loader.golden import PHASES

COLOURS = {"uniform": "tab:gray", "captured": "tab:red", "zipf": "tab:blue"}
_INCHES = 4.5  # of a panel


def require() -> None:
    """MissingExtraError without matplotlib: asked before the work that a plot would show."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("matplotlib", install_line("report"), "--plot") from error


def save(found: Comparison, path: str) -> None:
    """Write a PNG. UsageError where the file cannot be written."""
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = 3 if found.times else 2
    figure = Figure(figsize=(_INCHES * columns, _INCHES * len(PHASES)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(found.capture.summary, fontsize="small", wrap=True)
    grid = figure.add_gridspec(len(PHASES), columns)
    for row, phase in enumerate(PHASES):
        _shares(figure.add_subplot(grid[row, 0]), found, phase)
        _layers(figure, figure.add_subplot(grid[row, 1]), found, phase)
    if found.times:
        _times(figure.add_subplot(grid[:, 2]), found)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise UsageError(f"--plot {path}: {error.strerror}") from error


def _shares(axes: Any, found: Comparison, phase: str) -> None:
    """Mean over the layers, and the band between the least and the most skewed one."""
    for load in found.loads:
        if load.phase != phase:
            continue
        share_LR = 100 * load.share_LE.sort(1, descending=True).values.numpy()
        rank = range(1, share_LR.shape[1] + 1)
        colour = COLOURS[load.skew]
        axes.plot(rank, share_LR.mean(0), marker="o", markersize=3, color=colour, label=load.skew)
        axes.fill_between(rank, share_LR.min(0), share_LR.max(0), color=colour, alpha=0.15)
    axes.set(title=f"{phase}: load by favourite", xlabel="expert, hottest first", ylabel="% of choices")
    axes.set_ylim(bottom=0)
    _whole(axes.xaxis)
    axes.legend()


def _layers(figure: Any, axes: Any, found: Comparison, phase: Any) -> None:
    share_LE = found.captured(phase).share_LE
    relative_LE = (share_LE * share_LE.shape[1]).numpy()
    most = max(2.0, float(relative_LE.max()))
    image = axes.imshow(relative_LE, aspect="auto", cmap="coolwarm", vmin=0, vmax=most)
    axes.set(title=f"{phase}: captured load / mean", xlabel="expert", ylabel="layer")
    _whole(axes.xaxis, axes.yaxis)
    figure.colorbar(image, ax=axes)


def _times(axes: Any, found: Comparison) -> None:
    height = 0.8 / len(SKEWS)
    for index, skew in enumerate(SKEWS):
        timed = [(row, each.ratio(skew)) for row, each in enumerate(found.times) if skew in each.us]
        places, ratios = [row + index * height for row, _ in timed], [ratio for _, ratio in timed]
        axes.barh(places, ratios, height=height, color=COLOURS[skew], label=skew)
    names = [f"{each.task} {each.candidate}\n{each.case}" for each in found.times]
    axes.set_yticks([row + height for row in range(len(names))], names, fontsize="x-small")
    axes.invert_yaxis()
    axes.set(title="time against uniform routing", xlabel="ratio")
    axes.axvline(1, color="black", linewidth=0.5)
    axes.legend(loc="lower left", fontsize="small")


def _whole(*axes: Any) -> None:
    """Ticks at whole numbers: experts and layers are counted."""
    for axis in axes:
        axis.get_major_locator().set_params(integer=True)
