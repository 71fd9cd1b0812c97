"""Point Transformer V3 as plain PyTorch modules, because its library needs a sparse convolution that is
compiled for a version of PyTorch and CUDA each: from voxels on the host to features on the device.

As the library, it makes orders, tables and patches in the call and reads how many voxels there are on the
host. A sparse convolution is a gather and a product; attention is PyTorch's, of patches of one length, the
shortest cloud's where that is shorter. Its settings: as it is, and with blocks compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, requests


def plain(config: dict[str, Any], compiled: bool = False) -> Any:
    import torch
    import torch.nn.functional as F
    from torch import nn

    from fastkernels import kernels
    from fastkernels.kernels.serialize import ORDERS
    from fastkernels.nn.clouds import patches

    class Conv(nn.Module):
        def __init__(self, inputs: int, outputs: int, taps: int, bias: bool = True) -> None:
            super().__init__()
            self.linear = nn.Linear(taps**3 * inputs, outputs, bias=bias)

        def forward(self, x: Any, table: Any) -> Any:
            return self.linear(F.pad(x, (0, 0, 0, 1))[table].flatten(1))

    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads, self.conv = heads, Conv(width, width, 3)
            self.cpe = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width))
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            hidden = int(width * config["mlp_ratio"])
            self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

        def forward(self, x: Any, carried: Any, table: Any, order: Any, inverse: Any) -> Any:
            x = x + self.cpe(self.conv(carried, table))
            qkv = self.qkv(self.norm1(x))[order].unflatten(-1, (3, self.heads, -1))  # [P, K, 3, H, D]
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
            x = x + self.proj(seen.flatten(0, 1).flatten(1)[inverse])
            return x + self.mlp(self.norm2(x))

    def stage(width: int, heads: int, depth: int) -> Any:
        blocks: list[Any] = [Block(width, heads) for _ in range(depth)]
        return nn.ModuleList(map(torch.compile, blocks) if compiled else blocks)

    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            enc, dec = config["enc_channels"], config["dec_channels"]
            norm = partial(nn.BatchNorm1d, eps=1e-3)
            self.stem = Conv(config["in_channels"], enc[0], 5, bias=False)
            self.stem_norm = norm(enc[0])
            self.down = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(enc))
            self.down_norm = nn.ModuleList(norm(width) for width in enc[1:])
            self.enc = nn.ModuleList(map(stage, enc, config["enc_num_head"], config["enc_depths"]))
            coarser = [*dec[1:], enc[-1]]
            self.up, self.skip = (
                nn.ModuleList(
                    nn.Sequential(nn.Linear(inputs, width), norm(width), nn.GELU())
                    for inputs, width in zip(of, dec)
                )
                for of in (coarser, enc)
            )
            self.dec = nn.ModuleList(map(stage, dec, config["dec_num_head"], config["dec_depths"]))

        def blocks(self, blocks: Any, x: Any, carried: Any, level: dict[str, Any], size: int) -> Any:
            size = min(size, *level["counts"])
            pad, unpad, _ = patches(level["batch"], level["counts"], size)
            pad = pad.view(-1, size)
            for i, block in enumerate(blocks):
                o = i % len(level["order"])
                order, inverse = level["order"][o][pad], unpad[level["inverse"][o]]
                x = block(x, carried, level["table"], order, inverse)
                carried = x
            return x

        def forward(self, feat: Any, grid: Any, batch: Any) -> Any:
            depth = int(grid.max()).bit_length()
            code, order, inverse = kernels.serialize(grid, batch, depth, ORDERS, impl="torch")
            table = kernels.sparse_neighbors(grid, batch, 5, impl="torch")
            x = F.gelu(self.stem_norm(self.stem(feat, table)))
            levels: list[dict[str, Any]] = []
            skips = []
            for s, blocks in enumerate(self.enc):
                level: dict[str, Any] = {}
                if s:
                    skips.append(x)
                    clusters = len((code[0] >> 3).unique())
                    coarse = kernels.coarsen(code, order, clusters, impl="torch")
                    code, order, inverse, level["cluster"], _, head = coarse
                    grid, batch = grid[head] >> 1, batch[head]
                    x = self.down[s - 1](x)
                    index = level["cluster"][:, None].expand_as(x)
                    x = x.new_empty(clusters, x.shape[1]).scatter_reduce_(
                        0, index, x, "amax", include_self=False
                    )
                    x = F.gelu(self.down_norm[s - 1](x))
                table = kernels.sparse_neighbors(grid, batch, 3, impl="torch")
                level |= {"order": order, "inverse": inverse, "table": table}
                level |= {"batch": batch, "counts": batch.bincount().tolist()}
                levels.append(level)
                x = self.blocks(blocks, x, x, level, config["enc_patch_size"][s])
            for s in reversed(range(len(skips))):
                skip = self.skip[s](skips[s])
                x = skip + self.up[s](x)[levels[s + 1]["cluster"]]
                x = self.blocks(self.dec[s], x, skip, levels[s], config["dec_patch_size"][s])
            return x

    return Backbone().eval()


class Plain:
    settings: ClassVar[tuple[str, ...]] = ("default", "compiled")

    def __init__(self, machine: Machine) -> None:
        import torch

        self._machine, self._device = machine, torch.device(machine.device)
        self._made: dict[str, Any] = {}
        self.version = str(torch.__version__)

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch

        from fastkernels.nn.batching import sent

        if setting not in self._made:
            is_compiled = setting == "compiled"
            self._made[setting] = self._machine.filled(partial(plain, self._machine.config, is_compiled))
        backbone, drawn = self._made[setting], requests(workload, self._machine)
        feat, grid = (torch.cat([one[name] for one in drawn]) for name in ("feat", "grid_coord"))
        counts = torch.tensor([len(one["feat"]) for one in drawn])
        batch = torch.arange(len(drawn)).repeat_interleave(counts)

        @torch.inference_mode()
        def run() -> int:
            backbone(*(sent(each, self._device) for each in (feat, grid, batch)))
            return len(drawn)

        return run


COMPARISONS = [
    Comparison(
        "point_transformer_v3",
        "torch",
        Ours,
        Plain,
        partial(one_batch, "point_transformer_v3"),
        bars=dict.fromkeys(("scanobjectnn", "scan-batch-8", "single-cloud"), 1.0),
    )
]
