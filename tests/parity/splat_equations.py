"""3D Gaussian splatting from its equations: every Gaussian on the whole image, nearest first, without tiles.
`wrong` makes one of the mistakes that renderers have been seen to make."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

WIDTH, HEIGHT = 40, 33  # no multiples of a tile
DEGREE = 3


class Scene(NamedTuple):
    means: Tensor
    quats: Tensor
    scales: Tensor
    opacities: Tensor
    sh: Tensor
    viewmats: Tensor
    Ks: Tensor

    def cast(self, dtype: torch.dtype) -> Scene:
        return Scene(*(part.to(dtype) for part in self))


def scene(seed: int = 0, random: int = 60) -> Scene:
    """float32, but for exact rotations. Random Gaussians, and in front: opaque ones that end pixels, one
    beside the image whose Jacobian is clamped, one behind the first camera."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) * (high - low) + low

    stack = torch.tensor([[0.1 * i - 0.3, 0.05 * i, 1.5 + 0.1 * i] for i in range(6)])
    special = torch.cat((stack, torch.tensor([[2.6, 0.1, 2.6], [0.0, 0.1, -2.0]])))
    means = 0.6 * torch.randn(random, 3, generator=generator) + torch.tensor([0.0, 0.0, 3.0])
    sizes = torch.cat((torch.full((6, 3), 0.2), torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.5, 0.5]])))
    solid = torch.tensor([0.98, 0.95, 1.0, 0.97, 0.9, 0.98, 0.9, 0.9])
    c, s = torch.tensor(0.3, dtype=torch.float64).cos(), torch.tensor(0.3, dtype=torch.float64).sin()
    turn = torch.eye(4, dtype=torch.float64)
    turn[0, 0], turn[0, 2], turn[2, 0], turn[2, 2] = c, s, -s, c
    turn[:3, 3] = torch.tensor([-0.4, 0.1, 0.3])
    intrinsic = torch.tensor([[35.0, 0, 20], [0, 36, 16], [0, 0, 1]])
    number = random + len(special)
    return Scene(
        torch.cat((means, special)),
        torch.randn(number, 4, generator=generator),
        torch.cat((uniform(0.01, 0.16, random, 3), sizes)),
        torch.cat((uniform(0, 1, random), solid)),
        0.5 * torch.randn(number, (DEGREE + 1) ** 2, 3, generator=generator),
        torch.stack((torch.eye(4, dtype=torch.float64), turn)),
        torch.stack((intrinsic, intrinsic)),
    )


def rotation(quats_N4: Tensor, wrong: str) -> Tensor:
    if wrong != "quaternions as they are":
        quats_N4 = quats_N4 / quats_N4.norm(dim=-1, keepdim=True)
    w, *axis = quats_N4.roll(1, -1).unbind(-1) if wrong == "w last" else quats_N4.unbind(-1)
    x, y, z = axis
    zero = torch.zeros_like(x)
    cross = torch.stack((zero, -z, y, z, zero, -x, -y, x, zero), -1).unflatten(-1, (3, 3))
    return torch.eye(3, dtype=quats_N4.dtype) + 2 * w[:, None, None] * cross + 2 * cross @ cross


def harmonics(d_N3: Tensor, wrong: str) -> Tensor:
    x, y, z = d_N3.unbind(-1)
    sign = 1 if wrong == "signs of harmonics" else -1
    one = torch.ones_like(x)
    return torch.stack((
        0.28209479177387814 * one,
        sign * 0.4886025119029199 * y, 0.4886025119029199 * z, sign * 0.4886025119029199 * x,
        1.0925484305920792 * x * y, sign * 1.0925484305920792 * y * z,
        0.31539156525252005 * (3 * z * z - 1), sign * 1.0925484305920792 * x * z,
        0.5462742152960396 * (x * x - y * y),
        sign * 0.5900435899266435 * y * (3 * x * x - y * y), 2.890611442640554 * x * y * z,
        sign * 0.4570457994644658 * y * (5 * z * z - 1), 0.3731763325901154 * z * (5 * z * z - 3),
        sign * 0.4570457994644658 * x * (5 * z * z - 1), 1.445305721320277 * z * (x * x - y * y),
        sign * 0.5900435899266435 * x * (x * x - 3 * y * y),
    ), -1)  # fmt: skip


def colours(s: Scene, camera: int, wrong: str) -> Tensor:
    if wrong == "colours without direction":
        return (0.5 + 0.28209479177387814 * s.sh[:, 0]).clamp(0, 1)
    eye = torch.linalg.inv(s.viewmats[camera])[:3, 3]
    d_N3 = s.means - eye
    if wrong == "direction to the camera":
        d_N3 = -d_N3
    basis_NK = harmonics(d_N3 / d_N3.norm(dim=-1, keepdim=True), wrong)
    sh = s.sh.flatten(1).unflatten(1, (3, -1)).mT if wrong == "channels first" else s.sh
    found = torch.einsum("nk,nkc->nc", basis_NK, sh) + 0.5
    return found.clamp(0, 1) if wrong == "colours at most 1" else found.clamp_min(0)


def projected(s: Scene, camera: int, wrong: str = "") -> tuple[Tensor, Tensor, Tensor]:
    """(u [N, 2], S2 [N, 2, 2], p [N, 3])"""
    turn, K = s.viewmats[camera, :3, :3], s.Ks[camera]
    p_N3 = s.means @ turn.T + s.viewmats[camera, :3, 3]
    axes_N33 = rotation(s.quats, wrong) * s.scales[:, None]
    sigma_N33 = turn @ (axes_N33 @ axes_N33.mT) @ turn.T
    focal, middle = K.diagonal()[:2], K[:2, 2]
    size = torch.tensor((WIDTH, HEIGHT), dtype=s.means.dtype)
    margin = 0.3 * 0.5 * size / focal
    slope = p_N3[:, :2] / p_N3[:, 2:]
    clamped = slope.clamp(-(middle / focal + margin), (size - middle) / focal + margin)
    u_N2 = focal * (clamped if wrong == "clamped positions" else slope) + middle
    if wrong == "no clamp in the Jacobian":
        clamped = slope
    J_N23 = torch.cat(
        (torch.diag_embed((focal / p_N3[:, 2:])), (-focal * clamped / p_N3[:, 2:])[..., None]), -1
    )
    blur = 0.0 if wrong == "no low-pass" else 0.3
    return u_N2, J_N23 @ sigma_N33 @ J_N23.mT + blur * torch.eye(2, dtype=s.means.dtype), p_N3


def image(s: Scene, camera: int, wrong: str = "") -> tuple[Tensor, Tensor, Tensor]:
    """(rgb [H, W, 3], alpha [H, W], whether a rounding could decide at this pixel [H, W])"""
    u_N2, S2_N22, p_N3 = projected(s, camera, wrong)
    conic_N22, colour_N3 = torch.linalg.inv(S2_N22), colours(s, camera, wrong)
    shift = 0.0 if wrong == "corners of pixels" else 0.5
    y, x = (torch.arange(n, dtype=s.means.dtype) + shift for n in (HEIGHT, WIDTH))
    at_HW2 = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], -1)
    out_HW3 = torch.zeros(HEIGHT, WIDTH, 3, dtype=s.means.dtype)
    through_HW = torch.ones(HEIGHT, WIDTH, dtype=s.means.dtype)
    ended_HW = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
    near_HW = ended_HW.clone()
    depth_N = p_N3.norm(dim=-1) if wrong == "sorted by distance" else p_N3[:, 2]
    order = depth_N.argsort(stable=True)
    for n in order.flip(0) if wrong == "farthest first" else order:
        if p_N3[n, 2] < 0.01:
            continue
        d_HW2 = u_N2[n] - at_HW2
        sigma_HW = 0.5 * torch.einsum("hwi,ij,hwj->hw", d_HW2, conic_N22[n], d_HW2)
        cap = 0.99 if wrong == "cap of 0.99" else 0.999
        alpha_HW = (s.opacities[n] * torch.exp(-sigma_HW)).clamp_max(cap)
        near_HW |= (alpha_HW * 255 - 1).abs() < 1e-4
        if wrong != "skipped Gaussians dim":
            alpha_HW = torch.where(alpha_HW < 1 / 255, 0, alpha_HW)
        after_HW = through_HW * (1 - alpha_HW)
        near_HW |= (after_HW / 1e-4 - 1).abs() < 1e-3
        would_end_HW = after_HW <= 1e-4
        if wrong != "the last one counts":
            ended_HW |= would_end_HW
        weight_HW = torch.where(ended_HW | (alpha_HW < 1 / 255), 0, alpha_HW * through_HW)
        through_HW = torch.where(ended_HW, through_HW, after_HW)
        out_HW3 += weight_HW[..., None] * colour_N3[n]
        ended_HW |= would_end_HW
    return out_HW3, 1 - through_HW, near_HW
