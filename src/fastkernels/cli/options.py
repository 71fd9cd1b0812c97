"""Options that several verbs have, with one name, one meaning and one help text."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable
from typing import Any

import click
from click.core import ParameterSource

from fastkernels.errors import UsageError


class Number(click.FloatRange):
    """A finite number in a range. click takes `nan` for one, and no limit is ever crossed beside it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


class Choice(click.Choice):
    """One of a few words; a wrong one is answered with the nearest, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            # `gpu` is nearer to `cpu` than to what is meant.
            if near := difflib.get_close_matches(str(value), [*self.choices], n=1, cutoff=0.7):
                self.fail(f"{error.message} Did you mean {near[0]}?", param, ctx)
            raise


def _writable(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        from fastkernels.report import files  # not for `--help`

        flag, place = param.opts[0], value if value == "-" else os.path.abspath(value)
        files.require_writable(value, flag)
        if (other := ctx.meta.setdefault(__name__, {}).setdefault(place, flag)) != flag:
            raise UsageError(f"{other} and {flag} both write {value}: name another place for one of them")
    return value


def written(*names: str, text: str, metavar: str = "PATH") -> Any:
    """An option for a file that a run writes at its end; asked before it begins whether it can."""
    return click.option(*names, metavar=metavar, callback=_writable, help=text)


def _new_folder(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        from fastkernels.report import files  # not for `--help`

        files.require_new_folder(value, param.opts[0])
    return value


def new_folder(*names: str, text: str) -> Any:
    """An option for a folder that a run fills; asked before it begins whether it can, and is empty."""
    return click.option(*names, metavar="DIR", callback=_new_folder, help=text)


def refuse(names: Iterable[str], why: str) -> None:
    """UsageError where one of these parameters of the command was given: beside another they mean nothing,
    and `why` says beside which."""
    context = click.get_current_context()
    given = [
        param.opts[0]
        for param in context.command.params
        if param.name in names and context.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise UsageError(f"{', '.join(given)}: {why}")


def _only(ctx: click.Context, param: click.Parameter, values: tuple[Any, ...]) -> Any:
    if len(values) > 1:
        raise UsageError(f"{param.opts[0]} is given {len(values)} times, and narrows to one")
    return values[0] if values else None


def narrowing(*names: str, **flags: Any) -> Any:
    """An option that chooses what is judged. Given twice it is refused: click would take the last in silence,
    where both may be meant."""
    return click.option(*names, multiple=True, callback=_only, **flags)


def targets(default: str) -> Any:
    """`default`: which tasks are meant without it."""
    text = f"Task, alias or glob, with `:variant` if wanted. Default: {default}"
    return click.option("--target", "targets", multiple=True, metavar="PATTERN", help=text)


def model(required: bool = False) -> Any:
    text = "Architecture id (random weights), Hugging Face id, or folder with config.json."
    return click.option("--model", required=required, help=text)


level = narrowing("--level", type=click.IntRange(1, 4), help="Only tasks of this level.")
architecture = narrowing("--architecture", metavar="A", help="Only tasks and cases of this architecture.")
tasks_of = narrowing("--architecture", metavar="A", help="Only tasks that this architecture uses.")
case = narrowing(
    "--case",
    "case_glob",
    metavar="GLOB",
    help="Only these cases; without a wildcard, ids that contain the text.",
)
seed = click.option(
    "--seed",
    type=click.IntRange(min=0, max=2**63 - 1),
    default=0,
    show_default=True,
    help="Of random weights and random ids.",
)
size = click.option("--size", type=Choice(["tiny", "full"]), help="Default: full on CUDA, tiny on CPU.")
device = click.option("--device", type=Choice(["cpu", "cuda"]), help="Default: cuda where there is one.")
dtype = click.option("--dtype", help="Default: the model's on CUDA, float32 on a CPU.")
self_test = click.option(
    "--self-test", is_flag=True, help="Judge the baseline against itself: 1.00 within the printed noise."
)
budget = click.option(
    "--budget",
    "budget_s",
    type=Number(min=0.01),
    metavar="SECONDS",
    help="Time for sampling one timed case; more where few calls fit into it, or say little. Default: 1.",
)
timeout = click.option(
    "--timeout",
    "timeout_s",
    type=Number(min=0.1),
    metavar="SECONDS",
    help="Most time for one phase of a candidate: import, build, first call, call. Default by phase.",
)
cluster = click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Let the nodes of a Ray cluster judge (docs/cluster.md): HOST:PORT of its head, or `auto`.",
)
verbose = click.option(
    "--verbose",
    is_flag=True,
    help="Show all columns, and failures whole: with the harness's frames and all output.",
)
quiet = click.option("--quiet", is_flag=True, help="No progress on stderr; warnings and errors as ever.")
report_json = written("--json", "json_path", text="Write the report as JSON; `-` is stdout.")
