"""Times of a model's experts in Triton by tile: two products, the activation, the sum of a token's experts.

    TB/s = bytes of the experts that a call reads / time of a call

A captured CUDA graph makes several calls whose tokens choose other experts, so that a single token's weights
are not in the L2 cache; the time of a call is the median over replays / calls. A variant counts only if it is
as near to the present one as bfloat16 is. One line for each variant, the present one first, then the fastest
ones; what a device should choose goes to TILES of kernels/grouped_linear_triton.py, or of
kernels/grouped_linear_mxfp4_triton.py (gpt_oss), and to registry/devices.

python benchmarks/sweeps/experts.py gpt_oss --tokens 1 32 --out sweep.json
python benchmarks/sweeps/experts.py gemma4 --tokens 1 --compile 3/8    a share, for the cache on disk
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from timing import is_lost, median_us
from torch import Tensor
from triton.runtime.errors import OutOfResources

from fastkernels import kernels
from fastkernels.kernels import grouped_linear_glu_triton as glu
from fastkernels.kernels import grouped_linear_mxfp4_triton as mxfp4
from fastkernels.kernels import grouped_linear_triton as plain
from fastkernels.kernels.glu import Activation
from fastkernels.measure.environment import environment


class Model(NamedTuple):
    experts: int
    top_k: int
    hidden: int
    inner: int
    activation: Activation | None  # None: clamped, and codes of four bits with a scale for 32


MODELS = {
    "gpt_oss": Model(32, 4, 2880, 2880, None),
    "gemma4": Model(128, 8, 2816, 704, "gelu_tanh"),
    "kimi_linear": Model(256, 8, 2304, 1024, "silu"),
    "qwen3_next": Model(512, 10, 2048, 512, "silu"),
    "mixtral": Model(8, 2, 4096, 14336, "silu"),
}
GROUP, BITS_OF_A_CODE = 32, 4 + 8 / 32
CALLS, REPLAYS, WARM_UPS = 8, 15, 3
# For few slots of an expert, and for more: outputs, inputs, warps, stages, tiles of slots side by side.
FEW = ((32, 64, 128), (64, 128, 256), (4, 8), (3, 4, 5), (1,))
MORE = ((64, 128, 256), (64, 128), (4, 8), (3, 4), (8,))
SLOTS = (16, 32, 64, 128)
MOST_ERROR = 0.02  # of the largest element
PRINTED = 6
Run = Callable[[], list[Tensor]]


def variants(model: Model, tokens: int, module: Any) -> Iterator[Any]:
    """None: as the kernel chooses. Tiles of from a half to twice the slots of an expert."""
    yield None
    average = max(SLOTS[0], min(SLOTS[-1], tokens * model.top_k // model.experts))
    for m in SLOTS:
        if average / 2 <= m <= 2 * average:
            for n, k, warps, stages, together in product(*(FEW if m == SLOTS[0] else MORE)):
                tile = module.Tile(m, n, k, together, warps, stages)
                yield tile
                if module is mxfp4:
                    yield tile._replace(assembly=False)


def calls(model: Model, tokens: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Rows, routing weights and ids of each call; a lone token's experts are others in each."""
    found = []
    for call in range(CALLS):
        ids_TK = torch.rand(tokens, model.experts, device="cuda").topk(model.top_k).indices.int()
        if tokens == 1:
            ids_TK = torch.arange(model.top_k, device="cuda", dtype=torch.int32)[None] + model.top_k * call
            ids_TK = ids_TK % model.experts
        weights_TK = torch.rand(tokens, model.top_k, device="cuda").softmax(-1)
        x_TD = torch.randn(tokens, model.hidden, device="cuda", dtype=torch.bfloat16)
        found.append((x_TD, weights_TK, ids_TK))
    return found


def of_codes(model: Model, given: list[tuple[Tensor, Tensor, Tensor]]) -> Run:
    stacks = []
    for rows, inputs in ((2 * model.inner, model.hidden), (model.hidden, model.inner)):
        shape = (model.experts, rows, inputs // GROUP)
        stacks += [
            torch.randint(256, (*shape, GROUP // 2), device="cuda", dtype=torch.uint8),
            torch.randint(119, 122, shape, device="cuda", dtype=torch.uint8),
            torch.randn(model.experts, rows, device="cuda", dtype=torch.bfloat16),
        ]
    both: Any = (*stacks, 1.702, 7.0)
    return lambda: [kernels.experts_mxfp4(*call, *both, impl="triton") for call in given]


def of_floats(model: Model, given: list[tuple[Tensor, Tensor, Tensor]]) -> Run:
    def weight(rows: int, inputs: int) -> Tensor:
        made = torch.empty(model.experts, rows, inputs, device="cuda", dtype=torch.bfloat16)
        return made.normal_(std=inputs**-0.5)

    assert model.activation is not None
    activation, first, second = (
        model.activation,
        weight(2 * model.inner, model.hidden),
        weight(model.hidden, model.inner),
    )

    def one(x_TD: Tensor, weights_TK: Tensor, ids_TK: Tensor) -> Tensor:
        aligned = kernels.moe_align(ids_TK, model.experts, impl="triton")
        h_SF = kernels.grouped_linear_glu(x_TD, first, *aligned, activation, impl="triton")
        y_SD = kernels.grouped_linear(h_SF, second, *aligned, weights_TK.flatten(), impl="triton")
        return kernels.moe_sum(y_SD.view(*ids_TK.shape, -1), impl="triton")

    return lambda: [one(*call) for call in given]


def time_us(run: Run) -> tuple[float, Tensor]:
    """Microseconds of a call, and the first result."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    return median_us(graph.replay, REPLAYS, WARM_UPS) / CALLS, results[0].clone()


def with_tile(modules: tuple[Any, ...], tile: Any) -> ExitStack:
    stack = ExitStack()
    for module in modules if tile else ():
        stack.enter_context(mock.patch.object(module, "tile_for", return_value=tile))
    return stack


def of_tokens(model: Model, tokens: int, share: tuple[int, int] | None) -> Iterator[dict[str, Any]]:
    is_coded = model.activation is None
    modules = (mxfp4,) if is_coded else (plain, glu)
    given, expected = calls(model, tokens), None
    run = (of_codes if is_coded else of_floats)(model, given)
    reached = sum(len(ids_TK.unique()) for *_, ids_TK in given) / CALLS
    bits = BITS_OF_A_CODE if is_coded else 16
    touched_bytes = reached * 3 * model.hidden * model.inner * bits / 8
    for index, tile in enumerate(variants(model, tokens, modules[0])):
        if share and index % share[1] != share[0]:
            continue
        line: dict[str, Any] = {"tokens": tokens, "variant": str(tile or "as it is")}
        try:
            with with_tile(modules, tile):
                if share:
                    run()
                    continue
                line["us"], found = time_us(run)
            expected = found if expected is None else expected
            off = (found - expected).abs().max() / expected.abs().max()
            line |= {"tb_s": touched_bytes / line["us"] / 1e6, "agrees": off.item() < MOST_ERROR}
        except (RuntimeError, OutOfResources) as error:
            if is_lost(error):
                raise
            line["error"] = str(error)[:200]
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 32, 2048])
    parser.add_argument("--compile", help="I/N: run each N-th variant from the I-th on, and time nothing")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    share, lines = None, []
    if arguments.compile:
        first, count = map(int, arguments.compile.split("/"))
        share = (first, count)
    for tokens in arguments.tokens:
        found = list(of_tokens(MODELS[arguments.model], tokens, share))
        fastest = sorted((line for line in found[1:] if line.get("agrees")), key=lambda line: line["us"])
        for line in (*found[:1], *fastest[:PRINTED]):
            print(line, flush=True)
        lines += found
        if arguments.out:
            report = {
                "model": arguments.model,
                "environment": environment("cuda").model_dump(),
                "lines": lines,
            }
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
