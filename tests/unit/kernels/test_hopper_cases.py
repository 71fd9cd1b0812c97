"""Every Triton kernel compiles for Hopper at the shapes of real models, without a GPU.

The full-size cases run on meta tensors, and what they would launch is compiled instead.
"""

from functools import partial
from importlib import import_module

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from fastkernels import registry
from fastkernels.kernels import gemv, overlap, skinny
from fastkernels.kernels.base import observe, registered
from fastkernels.kernels.choice import IN_TRITON
from fastkernels.kernels.policy import interpreting
from fastkernels.loader.inputs import trial_specs
from fastkernels.loader.materialize import bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.measure.roofline import meta_tensors
from tests import rope_store_case
from tests.unit.kernels.hopper import HOPPER, MOST_SHARED

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(interpreting(), reason="the interpreter compiles nothing"),
    pytest.mark.usefixtures("own_cache"),
]

PROCESSORS = 132
# Specialisations of each kernel that are compiled: one or two seconds each for attention.
MOST = 2


class Hopper:
    """A driver that knows its target and can run nothing."""

    def get_current_target(self) -> GPUTarget:
        return HOPPER

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture
def compiled(monkeypatch) -> dict[str, int]:
    """The largest shared memory of each kernel in bytes, filled by launches; they raise what its compilation
    raises."""
    monkeypatch.setattr(driver, "_active", Hopper())
    compile_or_launch, seen, shared = JITFunction.run, {}, {}

    def run(kernel, *args, grid, warmup, **options):
        name = f"{kernel.fn.__module__}.{kernel.fn.__name__}"
        constants, known = str(sorted(options.items())), seen.setdefault(name, set())
        if constants in known or len(known) == MOST:
            return
        known.add(constants)
        made = compile_or_launch(kernel, *args, grid=grid, warmup=True, **options)
        shared[name] = max(shared.get(name, 0), made.metadata.shared)

    monkeypatch.setattr(JITFunction, "run", run)
    return shared


def on_a_hopper(module, monkeypatch) -> None:
    """The implementation believes that its tensors lie on one."""
    for name, fact in (("multiprocessors", PROCESSORS), ("overlapping", True)):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, lambda device, fact=fact: fact)


def test_every_triton_kernel_compiles_at_the_shapes_of_real_models(compiled, monkeypatch) -> None:
    ours = {
        (name, i.name): i for name, k in registered.items() for i in k.implementations if i.name in IN_TRITON
    }
    for module in (gemv, overlap, skinny, *(import_module(str(i.source)) for i in ours.values())):
        on_a_hopper(module, monkeypatch)
    launched = set()

    def launch(name, args) -> None:
        for (kernel, impl), implementation in ours.items():
            if kernel == name and not implementation.why_not(name, args, "cuda"):
                launched.add((kernel, impl))
                function = implementation.function(name)
                assert function is not None
                function(*args)

    baseline = Overlay.over_baseline()
    for task in (*registry.find_tasks(level=1), *registry.find_tasks(level=2)):
        for case in registry.cases(task, size="full"):
            module = build_module(baseline, case, "meta")
            call = bind(module, case, meta_tensors(trial_specs(case, module)))
            with observe(launch), torch.inference_mode():
                call.invoke()
    # Parts that become one kernel stay parts on meta tensors.
    empty = partial(torch.empty, dtype=torch.bfloat16, device="meta")
    for width in (1152, 1280):
        x_TD, w_D = empty(1500, width), empty(width)
        launch("add_layer_norm", (x_TD, x_TD, w_D, w_D, 1e-5))
        launch("sum_layer_norm", (x_TD, x_TD, w_D, w_D, 1e-5))
        launch("layer_norm_add", (x_TD, x_TD, w_D, w_D, 1e-5))
        ids_T = torch.empty(1500, dtype=torch.int64, device="meta")
        launch(
            "summed_embedding", (ids_T, ids_T, empty(30522, width), empty(514, width), w_D, w_D, w_D, 1e-5)
        )
    for shape in ((32, 32, 8, 128, 128), (32, 32, 8, 128, 64)):
        launch("rope_store_kv", rope_store_case.make(shape, torch.bfloat16, "meta", block_size=16))
    order_S, starts_E1 = (torch.empty(n, dtype=torch.int32, device="meta") for n in (256, 129))
    experts = (empty(32, 2816), empty(128, 1408, 2816), order_S, starts_E1)
    launch("grouped_linear_glu", (*experts, "gelu_tanh"))
    w_D, scale_1 = empty(2816), empty(1)
    for rows in (1, 32):
        x_TD = empty(rows, 2816)
        launch("split_branches", (x_TD, x_TD, w_D, w_D, w_D, w_D, 1e-6))
        launch("join_branches", (x_TD, x_TD, x_TD, w_D, w_D, w_D, scale_1, 1e-6))
    for shape in ((32, 16, 8, 256, 256), (32, 16, 2, 512, 512)):
        positions, q, k, v, *cache = rope_store_case.make(shape, torch.bfloat16, "meta", block_size=16)
        w_K = empty(shape[-1])
        launch("norm_rope_store_kv", (positions, q, k, v, w_K, w_K, 1e-6, *cache))
    for dtype in (torch.bfloat16, torch.float32):
        map_of = partial(torch.empty, dtype=dtype, device="meta")
        x, narrow, gate = map_of(32, 20, 20, 1152), map_of(32, 20, 20, 192), map_of(32, 1152)
        projection = (map_of(192, 1, 1, 1152), map_of(192))
        launch("conv2d_activation", (x, *projection, gate, narrow, 1, 0, 1, "none"))
        alone = (map_of(1, 10, 10, 1152), *projection, map_of(1, 1152), map_of(1, 10, 10, 192))
        launch("conv2d_activation", (*alone, 1, 0, 1, "none"))  # programs share a sum
        window = (map_of(128, 3, 3, 32), map_of(128))
        launch("conv2d_activation", (map_of(32, 80, 80, 32), *window, None, None, 2, 1, 1, "relu"))
        depthwise = (map_of(1152, 3, 3, 1), map_of(1152))
        launch("conv2d_activation", (x, *depthwise, None, None, 1, 1, 1152, "silu"))
        launch("conv2d_activation_mean", (x, *depthwise, 1, 1, 1152, "silu"))
        w_C, w_F = map_of(512), map_of(2048)
        block = map_of(32, 24, 24, 512)
        launch("depthwise_norm", (block, map_of(512, 7, 7, 1), w_C, w_C, w_C, 3, 1e-6))
        mlp = (map_of(2048, 512), w_F, w_F, w_F, map_of(512, 2048), w_C)
        launch("response_mlp", (block, *mlp, block, 1e-6))
        launch("squeeze_excite", (gate, map_of(48, 1152), map_of(48), map_of(1152, 48), map_of(1152)))
    starts_R1, columns_E = (torch.empty(n, dtype=torch.int32, device="meta") for n in (9993, 1148562))
    x_ND = torch.empty(9992, 64, device="meta")
    entries_E = torch.empty(1148562, device="meta")
    launch("sparse_mm_add", (starts_R1, columns_E, entries_E, x_ND, x_ND, 0.25))
    for rows in (1, 32):
        launch("linear_float32", (empty(rows, 4096), torch.nn.Parameter(empty(128256, 4096)), None))
        launch("linear_glu", (empty(rows, 4096), torch.nn.Parameter(empty(28672, 4096)), None, "silu"))
        weight, bias = torch.nn.Parameter(empty(5120, 1280)), empty(5120)
        launch("linear_activation", (empty(rows, 1280), weight, bias, "gelu"))
    ints = partial(torch.empty, dtype=torch.int32, device="meta")
    codes = partial(torch.empty, dtype=torch.uint8, device="meta")
    for rows in (1, 32):
        x_TD, weights_TK = empty(rows, 2880), torch.empty(rows, 4, device="meta")
        launch("linear_topk", (x_TD, empty(32, 2880), empty(32), 4, True))
        first = (codes(32, 5760, 90, 16), codes(32, 5760, 90), empty(32, 5760))
        second = (codes(32, 2880, 90, 16), codes(32, 2880, 90), empty(32, 2880))
        launch("experts_mxfp4", (x_TD, weights_TK, ints(rows, 4), *first, *second, 1.702, 7.0))
    exact = partial(torch.empty, dtype=torch.float32, device="meta")
    launch("linear_activation", (exact(16384, 1024), exact(512, 1024), exact(512), "relu"))
    x_TD, w_D, w_HK = empty(1500, 2560), empty(2560), empty(40, 64)
    launch("rwkv7_inputs", (*[x_TD] * 6, w_D, w_D, 40))
    launch("rwkv7_output", (*[x_TD] * 5, w_HK, w_D, w_D, 6.4e-4))
    ups = [empty(2560, rank) for rank in (96, 96, 320, 64)]
    kept = (torch.empty(9, 40, 64, 64, device="meta"), torch.empty(8, dtype=torch.int64, device="meta"))
    parameters = (ups, [w_D] * 3, w_D, w_D, w_HK, w_D, w_D)
    launch("rwkv7_step", (empty(8, 8256), empty(8, 2560), *parameters, *kept, 6.4e-4))
    assert set(ours) == launched
    assert len(compiled) > 30
    assert max(compiled.values()) <= MOST_SHARED
