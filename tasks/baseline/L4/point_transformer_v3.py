"""Point Transformer V3: clouds of voxels to a feature of each voxel.

    x_0 = blocks(embedding(features)),  x_s = blocks(pooling(x_(s-1)))         encoder, down to the last level
    x_s = blocks(unpooling(x_(s+1), x_s))                                      decoder, back to level 0

Voxels of level s have the side 2^s. Block i of a level attends along curve i mod O, in patches of neighbours
on it. N voxels of B clouds, C numbers of each, D features. Clouds share a launch and nothing else: each is
cut into patches of its own, and one that is shorter than a patch is one patch. So production does with flash
attention, and of a cloud alone without it; of several clouds without it, no patch is longer than the
shortest cloud. All is in the dtype of the module. `config` has the backbone's settings by the names of its
own configuration.
Mirrors pointcept.models.point_transformer_v3.PointTransformerV3 with cls_mode=False, in evaluation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fastkernels.kernels.serialize import ORDERS
from fastkernels.nn.clouds import Clouds, batch_of, patches, typical
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.program import Call, Place, Program, Stage
from fastkernels.nn.weight_map import WeightMap

from ..L1.serialization import Coarsen, Serialization
from ..L1.sparse_conv import SubMNeighbors
from ..L2.point_transformer import STEM_TAPS, TAPS, Embedding, SerializedPooling, SerializedUnpooling
from ..L3.point_block import Block

MOST_CLOUDS = 64  # of a launch


class Level(NamedTuple):
    """Voxels of one side. indices, idx_ptr, cluster: how those of half the side become them."""

    batch: Tensor
    counts: list[int]
    code: Tensor
    order: Tensor
    inverse: Tensor
    neighbors: Tensor
    indices: Tensor | None = None
    idx_ptr: Tensor | None = None
    cluster: Tensor | None = None


class PointTransformerV3(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        require_supported(reader)
        self.in_channels = reader.integer("in_channels")
        self.enc_patch_size, enc = stages_of(reader, "enc")
        self.dec_patch_size, dec = stages_of(reader, "dec")
        if len(dec) != len(enc) - 1:
            raise reader.error("dec_depths", f"has {len(dec)} stages, where enc_depths has {len(enc)}")
        widths = [stage["channels"] for stage in enc]
        shared = {"mlp_ratio": reader.number("mlp_ratio"), "qkv_bias": reader.flag("qkv_bias", default=True)}

        self.serialization, self.coarsen = Serialization(curves_of(reader)), Coarsen()
        self.stem_neighbors, self.neighbors = SubMNeighbors(STEM_TAPS), SubMNeighbors(TAPS)
        self.stem = Embedding(self.in_channels, widths[0])
        self.enc, self.dec = nn.ModuleDict(), nn.ModuleDict()
        for s, stage in enumerate(enc):
            down = {"down": SerializedPooling(widths[s - 1], widths[s])} if s else {}
            self.enc[f"enc{s}"] = nn.ModuleDict({**down, **blocks_of(stage, shared)})
        feat_channels = widths[-1]
        for s, stage in reversed(list(enumerate(dec))):
            up = SerializedUnpooling(feat_channels, widths[s], feat_channels := stage["channels"])
            self.dec[f"dec{s}"] = nn.ModuleDict({"up": up, **blocks_of(stage, shared)})
        self.weight_map = weight_map(self.in_channels, {"enc": widths, "dec": [s["channels"] for s in dec]})

    def forward(
        self, feat: Tensor, grid_coord: Tensor, offset: Tensor, counts: list[int], depth: int
    ) -> Tensor:
        """feat [N, C]; grid_coord int [N, 3], different in each cloud, from 0 to below 2^depth; offset int
        [B], where clouds end; counts: of each level the voxels of each cloud -> [N, D]"""
        stem_neighbors, levels = self.pyramid(grid_coord, offset, counts, depth)
        x = self.stem(feat, stem_neighbors)
        skips = []
        for s, level in enumerate(levels):
            stage: Any = self.enc[f"enc{s}"]
            if s:
                skips.append(x)
                x = stage["down"](x, level.indices, level.idx_ptr)
            x = self.attended(stage, x, level, self.enc_patch_size[s])
        for s, skip in reversed(list(enumerate(skips))):
            stage: Any = self.dec[f"dec{s}"]
            x, carried = stage["up"](x, skip, levels[s + 1].cluster)
            x = self.attended(stage, x, levels[s], self.dec_patch_size[s], carried)
        return x

    def pyramid(
        self, grid_coord: Tensor, offset: Tensor, counts: list[int], depth: int
    ) -> tuple[Tensor, list[Level]]:
        """Where the voxels around each voxel lie for the stem, and the levels."""
        clouds = len(offset)
        of_levels = [counts[at : at + clouds] for at in range(0, len(counts), clouds)]
        batch = batch_of(offset, len(grid_coord))
        code, order, inverse = self.serialization(grid_coord, batch, depth)
        stem_neighbors = self.stem_neighbors(grid_coord, batch)
        neighbors = self.neighbors(grid_coord, batch)
        levels = [Level(batch, of_levels[0], code, order, inverse, neighbors)]
        for of_level in of_levels[1:]:
            indices = order[0]
            code, order, inverse, cluster, idx_ptr, head = self.coarsen(code, order, sum(of_level))
            grid_coord, batch = grid_coord[head] >> 1, batch[head]
            neighbors = self.neighbors(grid_coord, batch)
            level = Level(batch, of_level, code, order, inverse, neighbors, indices, idx_ptr, cluster)
            levels.append(level)
        return stem_neighbors, levels

    def attended(
        self, stage: Any, x: Tensor, level: Level, patch_size: int, carried: Tensor | None = None
    ) -> Tensor:
        """The blocks of a stage, of which the first reads what is carried, where something is."""
        pad, unpad, cu_seqlens = patches(level.batch, level.counts, patch_size)
        blocks = [stage[name] for name in stage if name.startswith("block")]
        curves = range(min(len(level.order), len(blocks)))
        laid = [(level.order[o][pad], unpad[level.inverse[o]]) for o in curves]
        rows = (cu_seqlens, min(patch_size, max(level.counts)))
        for i, block in enumerate(blocks):
            x, carried = block(x, level.neighbors, *laid[i % len(laid)], *rows, carried), None
        return x

    def examples(self, run: str, batch: Batch) -> Examples:
        """A cloud for each row of the batch, of as many voxels as it has tokens."""
        voxels, clouds = batch.num_tokens, len(batch.seq_lens)
        depth, counts = typical(batch.seq_lens, len(self.enc))
        grid_coord, offset = (torch.empty(*shape, dtype=torch.int32) for shape in ((voxels, 3), (clouds,)))
        yield run, (torch.empty(voxels, self.in_channels), grid_coord, offset, counts, depth)

    def stages(self) -> dict[str, Stage]:
        return {"forward": Stage(Clouds(self.in_channels, len(self.enc), self.place), MOST_CLOUDS)}

    def program(self, feat: Tensor, grid_coord: Tensor) -> Program:
        """feat [n, C] and grid_coord int [n, 3] of different voxels, from 0 -> feat [n, D]"""
        found = yield Call("forward", feat, grid_coord)
        return {"feat": found}


def require_supported(config: ConfigReader) -> None:
    """UsageError for variants of the backbone that are other mathematics."""
    config.refuse(("cls_mode", "enable_rpe", "shuffle_orders", "upcast_attention", "upcast_softmax"))
    config.refuse(("pdnorm_bn", "pdnorm_ln", "qk_scale"))
    if not config.flag("pre_norm", default=True):
        raise config.error("pre_norm", "false is not supported")
    if any(stride != 2 for stride in config.integers("stride")):
        raise config.error("stride", "must be 2 at each pooling")


def curves_of(config: ConfigReader) -> list[str]:
    curves = config.names("order", len(config.config.get("order") or ()), ORDERS)
    if not curves or len(set(curves)) < len(curves):
        raise config.error("order", f"must be different curves, at least one, not {curves}")
    return curves


def stages_of(config: ConfigReader, part: str) -> tuple[list[int], list[dict[str, int]]]:
    """The patch size of each stage of the encoder or decoder, and what each is made with."""
    depths, channels, heads, sizes = (
        config.integers(f"{part}_{key}") for key in ("depths", "channels", "num_head", "patch_size")
    )
    poolings = len(config.integers("stride")) + (part == "enc")
    for key, values in (
        ("depths", depths),
        ("channels", channels),
        ("num_head", heads),
        ("patch_size", sizes),
    ):
        if len(values) != poolings:
            raise config.error(f"{part}_{key}", f"must have {poolings} entries, not {len(values)} (stride)")
    for width, num in zip(channels, heads):
        if width % num:
            raise config.error(
                f"{part}_channels", f"{width} are not {num} heads of one size ({part}_num_head)"
            )
    stages = zip(depths, channels, heads)
    return sizes, [{"depth": depth, "channels": width, "num_heads": num} for depth, width, num in stages]


def blocks_of(stage: dict[str, int], shared: dict[str, Any]) -> dict[str, nn.Module]:
    width, heads = stage["channels"], stage["num_heads"]
    return {f"block{i}": Block(width, heads, **shared) for i in range(stage["depth"])}


def weight_map(in_channels: int, widths: dict[str, list[int]]) -> WeightMap:
    """Names of the backbone's state dict, alone or within a segmentation model of Pointcept."""
    names = {
        "embedding.stem.*.*": "stem.*.*",
        "enc.*.down.proj.*": "enc.*.down.proj.*",
        "enc.*.down.norm.0.*": "enc.*.down.norm.*",
        "dec.*.up.proj.0.*": "dec.*.up.proj.*",
        "dec.*.up.proj.1.*": "dec.*.up.norm.*",
        "dec.*.up.proj_skip.0.*": "dec.*.up.proj_skip.*",
        "dec.*.up.proj_skip.1.*": "dec.*.up.norm_skip.*",
    }
    block = {
        "cpe.0.*": "cpe.conv.*",
        "cpe.1.*": "cpe.linear.*",
        "cpe.2.*": "cpe.norm.*",
        "norm1.0.*": "norm1.*",
        "norm2.0.*": "norm2.*",
        "attn.*.*": "attn.*.*",
        "mlp.0.*.*": "mlp.*.linear.*",
    }
    names |= {f"*.*.*.{theirs}": f"*.*.*.{ours}" for theirs, ours in block.items()}
    taps = {"stem.conv.weight": (-1, *[STEM_TAPS] * 3, in_channels)} | {
        f"{part}.{part}{s}.*.cpe.conv.weight": (-1, *[TAPS] * 3, width)
        for part, of_stages in widths.items()
        for s, width in enumerate(of_stages)
    }
    return WeightMap(
        names,
        ignored=("**.num_batches_tracked", "module.seg_head.*"),
        prefixes={"": "module.backbone."},
        vectors=taps,
    )
