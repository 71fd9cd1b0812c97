"""`ImageRequest`: what a prompt is to become, and whether its numbers can be served."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from fastkernels.engine.checks import IS_SEED, is_integer, is_seed, is_within
from fastkernels.errors import RequestError
from fastkernels.nn.flow_matching import TIMESTEPS
from fastkernels.nn.latents import TOKEN_PIXELS

MOST_SIDE = 4096  # of a side: an image 16 times as large as the largest that models are trained for
MOST_GUIDANCE = 65  # models embed it times 1000, and float16 ends at 65,504


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """text and pooled: the prompt as token ids int64 [S] for T5 and [S'] for CLIP, or as the features [S, J]
    and [P] that they make of it; or the prompt itself and None, where the model has tokenizers. height and
    width in pixels, multiples of 16. output: `image`, or `latent` before it is decoded; None: an image where
    the model has a decoder."""

    text: Tensor | str
    pooled: Tensor | None
    height: int
    width: int
    steps: int = 28
    guidance: float = 3.5
    seed: int = 0
    output: Literal["image", "latent"] | None = None


def checked(request: Any) -> ImageRequest:
    """The request, its numbers as Python's; a RequestError names the one that cannot be served."""
    if not isinstance(request, ImageRequest):
        raise RequestError(f"a request must be an ImageRequest, not {request!r:.60}")
    height, width = checked_sides(request.height, request.width)
    # A model tells so many timesteps apart.
    is_steps = is_integer(request.steps) and 1 <= request.steps <= TIMESTEPS
    _require("steps", request.steps, is_steps, f"an integer from 1 to {TIMESTEPS}")
    is_guidance = is_within(request.guidance, 0, MOST_GUIDANCE)
    _require("guidance", request.guidance, is_guidance, f"a number from 0 to {MOST_GUIDANCE}")
    _require("seed", request.seed, is_seed(request.seed), IS_SEED)
    is_output = request.output is None or str(request.output) in ("image", "latent")
    _require("output", request.output, is_output, "'image' or 'latent'")
    numbers = {"steps": int(request.steps), "guidance": float(request.guidance), "seed": int(request.seed)}
    return replace(request, height=height, width=width, **numbers)


def checked_sides(height: Any, width: Any) -> tuple[int, int]:
    """Sides of an image that tokens fill."""
    for name, side in (("height", height), ("width", width)):
        is_side = is_integer(side) and 0 < side <= MOST_SIDE and side % TOKEN_PIXELS == 0
        _require(name, side, is_side, f"a multiple of {TOKEN_PIXELS} pixels, up to {MOST_SIDE}")
    return int(height), int(width)


def _require(name: str, value: Any, is_met: bool, rule: str) -> None:
    if not is_met:
        raise RequestError(f"{name}={value!r:.60}: must be {rule}")
