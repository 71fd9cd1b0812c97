"""One small case of a task, and a kernel side inside this process."""

from collections.abc import Iterator

import pytest
import torch

from fastkernels import registry
from fastkernels.loader import views
from fastkernels.loader.inputs import draw_links, trial_specs
from fastkernels.loader.materialize import build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.measure.chain import ChainPlan
from fastkernels.records import Case, TensorSpec
from fastkernels.runner.inside.kernel_side import KernelSide
from fastkernels.runner.transfer.shared_memory import Arena

ONE = ChainPlan()


def small_case(task: str = "L1/rms_norm", which: str = "") -> Case:
    return registry.cases(task, size="tiny", glob=which or None)[0]


def specs_of(case: Case) -> dict[str, TensorSpec]:
    return trial_specs(case, build_module(Overlay.over_baseline(), case, "meta"))


def stored_of(case: Case) -> dict[str, TensorSpec]:
    """What a worker gets."""
    return views.stored(specs_of(case))


def drawn(case: Case, seed: int = 1, plan: ChainPlan = ONE) -> dict[str, torch.Tensor]:
    """[links, *shape]"""
    return draw_links(specs_of(case), case, seed, plan.links_of)


def sent(case: Case, inputs: dict[str, torch.Tensor], strided: bool = False) -> dict[str, torch.Tensor]:
    """The same as a worker gets them: of a chain in alternating layouts, else in one."""
    layouts = views.of_all(strided) if len(next(iter(inputs.values()))) == 1 else views.in_chain()
    stored = views.laid(specs_of(case), inputs, layouts)
    return {name: (inputs | stored)[name] for name in stored_of(case)}


@pytest.fixture
def side() -> Iterator[KernelSide]:
    threads = torch.get_num_threads()
    side = KernelSide("cpu", threads)
    yield side
    side.close()


@pytest.fixture
def arenas() -> Iterator[list[Arena]]:
    """Closed at the end."""
    opened: list[Arena] = []
    yield opened
    for arena in opened:
        arena.close()
