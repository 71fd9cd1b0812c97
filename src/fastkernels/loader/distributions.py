"""What floating-point inputs look like: a kernel that is right for one kind of values only must not pass.

    normal           N(0, 1)
    heavy_tail       N(0, 1) / sqrt(U): outliers as activations have them
    uniform_offset   U(-1, 1) + 3: the mean is not zero
    constant_rows    one value in a row: no variance
    sparse           19 of 20 values are zero, some rows are all zero
    extreme          rows of N(0, 1) whose scales span decades: here epsilon matters, there overflow is near
    mixed            every row one of these

Rows are the last dimension. All values are drawn in place, in the tensor's own dtype and on its own device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

_CHUNK = 1 << 24  # elements drawn at once: bounds temporary memory to some 100 MB


@dataclass(frozen=True)
class Limits:
    """Row scales are 10^-decades .. 10^decades; factors of the heavy tail are at most `outlier`. `half`: the
    limits of float16, whose largest number is 65,504, where they differ."""

    decades: float
    outlier: float
    half: Limits | None = None


# Results such as a gate times a value must be representable: in float16 squares of values are.
ORDINARY = Limits(decades=4, outlier=100, half=Limits(decades=1.5, outlier=10))
# A norm's results are of scale 1 whatever its argument's: squares of values, and their sums, may be beyond
# float16. The sum of two arguments, which a norm may return, may not.
NORMED = Limits(decades=4, outlier=100, half=Limits(decades=3.5, outlier=100))
# A softmax turns a logit's absolute error into a relative one: logits of 1e8 would leave no correct digit in
# float32, neither in the baseline nor in an honest candidate.
ATTENTION = Limits(decades=0.5, outlier=4)

EDGE = 0.1  # the share of the decades that counts as an end
# Groups that a map's channels are normed by are rarely more.
_BLOCKS_OF_CHANNELS = 32


def _within(limits: Limits, dtype: torch.dtype) -> Limits:
    return limits.half or limits if dtype == torch.float16 else limits


def _normal(x_RD: Tensor, generator: Generator, limits: Limits) -> None:
    x_RD.normal_(generator=generator)


def _heavy_tail(x_RD: Tensor, generator: Generator, limits: Limits) -> None:
    spread_RD = torch.empty(x_RD.shape, dtype=torch.float32, device=x_RD.device)
    spread_RD.uniform_(limits.outlier**-2, 1, generator=generator).rsqrt_()
    x_RD.normal_(generator=generator).mul_(spread_RD)


def _uniform_offset(x_RD: Tensor, generator: Generator, limits: Limits) -> None:
    x_RD.uniform_(2, 4, generator=generator)


def _constant_rows(x_RD: Tensor, generator: Generator, limits: Limits) -> None:
    x_RD.copy_(torch.empty_like(x_RD[:, :1]).normal_(generator=generator))


def _sparse(x_RD: Tensor, generator: Generator, limits: Limits) -> None:
    keep_RD = (
        torch.empty(x_RD.shape, dtype=torch.float32, device=x_RD.device).uniform_(generator=generator) < 0.05
    )
    x_RD.normal_(generator=generator).mul_(keep_RD)


def _extreme(x_RD: Tensor, generator: Generator, limits: Limits) -> None:
    decades_R1 = torch.empty((len(x_RD), 1), dtype=torch.float32, device=x_RD.device)
    decades_R1.uniform_(-1, 1, generator=generator)
    # One row is at an end of the range whatever is drawn: a tensor of one row would rarely be.
    decades_R1[:1] = decades_R1[:1].sign() * (1 - EDGE * decades_R1[:1].abs())
    decades_R1 *= limits.decades
    x_RD.normal_(generator=generator).mul_(10**decades_R1)


_PLAIN: dict[str, Callable[[Tensor, Generator, Limits], None]] = {
    "normal": _normal,
    "heavy_tail": _heavy_tail,
    "uniform_offset": _uniform_offset,
    "constant_rows": _constant_rows,
    "sparse": _sparse,
    "extreme": _extreme,
}


def _mixed(x_RD: Tensor, generator: Generator, limits: Limits) -> None:
    kind_R = torch.randint(len(_PLAIN), (len(x_RD),), generator=generator, device=x_RD.device)
    for index, draw in enumerate(_PLAIN.values()):
        rows = (kind_R == index).nonzero().squeeze(1)
        part_RD = torch.empty((len(rows), x_RD.shape[1]), dtype=x_RD.dtype, device=x_RD.device)
        draw(part_RD, generator, limits)
        x_RD[rows] = part_RD


_ALL = {**_PLAIN, "mixed": _mixed}
DISTRIBUTIONS = tuple(_ALL)


def fill_map(x_BYXC: Tensor, distribution: str, generator: Generator) -> Tensor:
    """The same of feature maps, [..., B, Y, X, C], whose statistics go over all places: the loudest of them
    sets these, so `extreme` has one scale for a block of an image's channels. Maps are what norms take."""
    if distribution != "extreme":
        return fill(x_BYXC, distribution, generator, NORMED)
    images, channels = x_BYXC.shape[:-3], x_BYXC.shape[-1]
    blocks = min(channels, _BLOCKS_OF_CHANNELS)
    decades = _within(NORMED, x_BYXC.dtype).decades
    scale_BK = torch.empty((*images, blocks), dtype=torch.float32, device=x_BYXC.device)
    scale_BK.uniform_(-decades, decades, generator=generator)
    block_C = torch.arange(channels, device=x_BYXC.device) * blocks // channels
    return fill(x_BYXC, "normal", generator).mul_(10 ** scale_BK[..., None, None, block_C])


def fill(x: Tensor, distribution: str, generator: Generator, limits: Limits = ORDINARY) -> Tensor:
    """Fill a contiguous floating-point tensor in place; ValueError for an unknown distribution."""
    if distribution not in _ALL:
        raise ValueError(f"No distribution '{distribution}'; there are {', '.join(_ALL)}")
    limits = _within(limits, x.dtype)
    width = x.shape[-1] if x.dim() else 1
    if x.numel():
        for chunk_RD in x.view(-1, width).split(max(1, _CHUNK // width)):
            _ALL[distribution](chunk_RD, generator, limits)
    return x
