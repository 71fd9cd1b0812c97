"""Times of experts_mxfp4 in Triton by tile, at the sizes of gpt-oss-20b: 32 experts, four of a token, 2,880.

    TB/s = bytes of the codes and scales of the experts that a call reads / time of a call

A captured CUDA graph makes several calls whose tokens choose other experts, so that a single token's weights
are not in the L2 cache; the time of a call is the median over replays / calls. `torch`, of many tokens,
expands all weights in memory first. A variant counts only if it is as near to the present one as bfloat16 is.
One line for each variant, the present one first, then the fastest ones; what a device should choose goes to
TILES of kernels/grouped_linear_mxfp4_triton.py and to registry/devices.

python benchmarks/sweeps/experts_mxfp4.py --tokens 1 32 --out sweep.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from timing import is_lost, median_us
from torch import Tensor
from triton.runtime.errors import OutOfResources

from fastkernels import kernels
from fastkernels.kernels import grouped_linear_mxfp4_triton as grouped
from fastkernels.kernels.grouped_linear_mxfp4_triton import Tile
from fastkernels.measure.environment import environment

EXPERTS, TOP_K, WIDTH, GROUP = 32, 4, 2880, 32
TOKENS = (1, 2, 8, 32, 128, 512, 2048, 8192)
CALLS, REPLAYS, WARM_UPS = 8, 15, 3
# For few slots of an expert, and for more: outputs, inputs, warps, stages, tiles of slots side by side.
FEW = ((32, 64, 128), (64, 128, 256), (4, 8), (3, 4, 5), (1,))
MORE = ((64, 128), (64, 128), (4, 8), (3, 4), (8,))
SLOTS = (16, 32, 64, 128, 256)
MOST_ERROR = 0.02  # of the largest element
PRINTED = 6


def variants(tokens: int) -> Iterator[Tile | None]:
    """None: as the kernel chooses. Tiles of from a half to twice the slots of an expert."""
    yield None
    average = max(SLOTS[0], min(SLOTS[-1], tokens * TOP_K // EXPERTS))
    for m in SLOTS:
        if average / 2 <= m <= 2 * average:
            for n, k, warps, stages, together in product(*(FEW if m == SLOTS[0] else MORE)):
                yield Tile(m, n, k, together, warps, stages)


def weights() -> tuple[Tensor, ...]:
    """Of both products, on the GPU."""
    made: list[Tensor] = []
    for rows in (2 * WIDTH, WIDTH):
        shape = (EXPERTS, rows, WIDTH // GROUP)
        made += [
            torch.randint(256, (*shape, GROUP // 2), device="cuda", dtype=torch.uint8),
            torch.randint(119, 122, shape, device="cuda", dtype=torch.uint8),
            torch.randn(EXPERTS, rows, device="cuda", dtype=torch.bfloat16),
        ]
    return tuple(made)


def calls(tokens: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Rows, routing weights and ids of each call; a lone token's experts are others in each."""
    found = []
    for call in range(CALLS):
        ids_TK = torch.rand(tokens, EXPERTS, device="cuda").topk(TOP_K).indices.int()
        if tokens == 1:
            ids_TK = torch.arange(TOP_K, device="cuda", dtype=torch.int32)[None] + TOP_K * call
        weights_TK = torch.rand(tokens, TOP_K, device="cuda").softmax(-1)
        x_TD = torch.randn(tokens, WIDTH, device="cuda", dtype=torch.bfloat16)
        found.append((x_TD, weights_TK, ids_TK))
    return found


def time_us(run: Callable[[], list[Tensor]]) -> tuple[float, Tensor]:
    """Microseconds of a call, and the first result."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    return median_us(graph.replay, REPLAYS, WARM_UPS) / CALLS, results[0].clone()


def of_tokens(tokens: int, stacks: tuple[Tensor, ...]) -> Iterator[dict[str, Any]]:
    given, expected = calls(tokens), None
    reached = sum(len(ids_TK.unique()) for *_, ids_TK in given) / CALLS
    touched_bytes = reached * 3 * WIDTH * WIDTH * (0.5 + 1 / GROUP)

    def run(impl: str) -> list[Tensor]:
        return [kernels.experts_mxfp4(*call, *stacks, 1.702, 7.0, impl=impl) for call in given]

    def in_parts() -> list[Tensor]:
        with kernels.use(grouped_linear_mxfp4="torch", moe_align="triton", clamped_glu="triton"):
            return run("parts")

    tried: list[tuple[str, Tile | None]] = [("triton", tile) for tile in variants(tokens)]
    if tokens >= TOKENS[-4]:
        tried.append(("torch", None))
    for impl, tile in tried:
        line: dict[str, Any] = {"tokens": tokens, "variant": f"{impl} {tile or 'as it is'}"}
        chosen = (lambda *_, tile=tile: tile) if tile else grouped.tile_for
        try:
            with mock.patch.object(grouped, "tile_for", chosen):
                line["us"], found = time_us(in_parts if impl == "torch" else lambda: run("triton"))
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
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    stacks, lines = weights(), []
    for tokens in arguments.tokens:
        first, *others = of_tokens(tokens, stacks)
        fastest = sorted((line for line in others if line.get("agrees")), key=lambda line: line["us"])
        for line in (first, *fastest[:PRINTED]):
            print(line, flush=True)
        lines += [first, *others]
        if arguments.out:
            report = {"environment": environment("cuda").model_dump(), "lines": lines}
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
