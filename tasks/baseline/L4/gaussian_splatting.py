"""A trained scene of Gaussians, and its images from any camera.

    scales = exp(log_scales);  opacities = sigmoid(logit_opacities);  images = rasterization(.., cameras)

N Gaussians, K = (sh_degree + 1)^2 coefficients of each colour, C cameras, H x W pixels. `config` holds
num_gaussians, sh_degree, width, height and max_isects: for how many pairs of a Gaussian and a tile there are
places, for each image. All is float32.
Mirrors gsplat.rendering.rasterization on the parameters of gsplat's trainer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.cameras import Cameras
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.program import Call, Place, Program, RequestError, Stage
from fastkernels.nn.splats import splat_map

from ..L3.splat_render import Rasterization

MOST_CAMERAS = 8  # of a launch


class GaussianSplatting(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        number = reader.integer("num_gaussians")
        self.width, self.height = reader.integer("width"), reader.integer("height")
        self.sh_degree = reader.integer("sh_degree", minimum=0)
        if self.sh_degree > 3:
            raise reader.error("sh_degree", f"must be 0 to 3, not {self.sh_degree}")
        self.max_isects = reader.integer("max_isects")
        self.means = _empty(number, 3)
        self.log_scales = _empty(number, 3)
        self.quats = _empty(number, 4)
        self.logit_opacities = _empty(number)
        self.sh = _empty(number, (self.sh_degree + 1) ** 2, 3)
        self.rasterization = Rasterization()
        self.weight_map = splat_map(self.sh_degree)

    def forward(self, viewmats: Tensor, Ks: Tensor) -> tuple[Tensor, Tensor]:
        """viewmats [C, 4, 4] from the world to the camera, Ks [C, 3, 3] -> colours [C, H, W, 3], NaN where
        an image has more than max_isects pairs, and alphas [C, H, W, 1]"""
        return self.rasterization(
            self.means,
            self.quats,
            self.log_scales.exp(),
            self.logit_opacities.sigmoid(),
            self.sh,
            viewmats,
            Ks,
            self.width,
            self.height,
            sh_degree=self.sh_degree,
            max_isects=len(viewmats) * self.max_isects,
        )

    def examples(self, run: str, batch: Batch) -> Examples:
        """A camera for each row of the batch."""
        cameras = len(batch.seq_lens)
        yield run, (torch.empty(cameras, 4, 4), torch.empty(cameras, 3, 3))

    def render_alone(self, viewmats: Tensor, Ks: Tensor) -> tuple[Tensor, Tensor]:
        """The same of one camera, whose pairs have all the places."""
        return self(viewmats, Ks)

    def stages(self) -> dict[str, Stage]:
        cameras = Cameras(self.place)
        return {"forward": Stage(cameras, MOST_CAMERAS), "render_alone": Stage(cameras, 1)}

    def program(self, viewmat: Tensor, intrinsics: Tensor) -> Program:
        """viewmat [4, 4] from the world to a camera that looks along z, x to the right and y down;
        intrinsics [3, 3] for the model's images, without skew -> rgb [H, W, 3], alpha [H, W, 1].

        Images of a launch share their places for pairs. Whether these sufficed is read on the host when the
        images are there; where not, each is made again alone.
        """
        for stage in ("forward", "render_alone"):
            rgb, alpha = yield Call(stage, viewmat, intrinsics)
            if not bool(rgb[0, 0, 0].isnan()):
                return {"rgb": rgb, "alpha": alpha}
        raise RequestError(
            f"viewmat: the image has more than {self.max_isects} pairs of a Gaussian and a tile. Move the "
            "camera away, or raise max_isects in the configuration"
        )


def _empty(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape), requires_grad=False)
