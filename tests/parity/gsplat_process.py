"""What gsplat computes on a CPU (apart.py). FILE holds the arguments of its functions by name, and then their
results: projection (radii, means2d, depths, conics), colours of directions, pairs and where tiles begin."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from gsplat.cuda import _torch_impl as gsplat


@torch.inference_mode()
def main(path: Path) -> None:
    asked = torch.load(path)
    covars, _ = gsplat._quat_scale_to_covar_preci(asked["quats"], asked["scales"], compute_preci=False)
    *projection, _ = gsplat._fully_fused_projection(
        asked["means"], covars, asked["viewmats"], asked["Ks"], asked["width"], asked["height"]
    )
    tiles = asked["tiles"]
    pairs = gsplat._isect_tiles(asked["means2d"], asked["radii"], asked["depths"], asked["tile_size"], *tiles)
    offsets = gsplat._isect_offset_encode(pairs[1], len(asked["viewmats"]), *tiles)
    colours = gsplat._spherical_harmonics(asked["degree"], asked["dirs"], asked["coeffs"])
    torch.save({"projection": projection, "pairs": pairs, "offsets": offsets, "colours": colours}, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
