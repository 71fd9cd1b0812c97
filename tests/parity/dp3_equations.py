"""3D Diffusion Policy from its equations, with the names of its checkpoint's tensors; no modules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

WRONG = (
    "noise of the clipped prediction", "1 + scale", "three levels up", "four groups",
    "frames in the other order",
    "padding of the convolutions", "padding of the transposed", "cosines first", "one block in a stage",
    "scale after the offset", "relu behind the state", "mish of the step alone",
)  # fmt: skip


@dataclass
class Policy:
    """wrong: one of WRONG, a mistake that implementations make."""

    weights: Mapping[str, Tensor]
    config: Mapping[str, Any]
    wrong: str = ""

    def __post_init__(self) -> None:
        self.clipped = 0.0  # the share of predicted numbers beyond 1 in the last run
        self.groups = 4 if self.wrong == "four groups" else self.config["n_groups"]
        self.blocks = 1 if self.wrong == "one block in a stage" else self.config["blocks_per_stage"]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        n = (x - mean) / (variance + 1e-5).sqrt()
        return n * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def normalised(self, name: str, x: Tensor) -> Tensor:
        scale, offset = (
            self.weights[f"normalizer.params_dict.{name}.{part}"] for part in ("scale", "offset")
        )
        return (x + offset) * scale if self.wrong == "scale after the offset" else x * scale + offset

    def observed(self, point_cloud: Tensor, agent_pos: Tensor) -> Tensor:
        p, name = self.normalised("point_cloud", point_cloud)[..., :3], "obs_encoder.extractor"
        for layer in (0, 3, 6):
            p = F.relu(self.norm(f"{name}.mlp.{layer + 1}", self.linear(f"{name}.mlp.{layer}", p)))
        p = self.linear(f"{name}.final_projection.0", p.max(2).values)
        p, s = self.norm(f"{name}.final_projection.1", p), self.normalised("agent_pos", agent_pos)
        s = self.linear("obs_encoder.state_mlp.2", F.relu(self.linear("obs_encoder.state_mlp.0", s)))
        s = F.relu(s) if self.wrong == "relu behind the state" else s
        frames = torch.cat((p, s), -1)
        return (frames.flip(1) if self.wrong == "frames in the other order" else frames).flatten(1)

    def step_features(self, t: int, like: Tensor) -> Tensor:
        half = self.config["diffusion_step_embed_dim"] // 2
        angle = t * torch.exp(-math.log(10000) / (half - 1) * torch.arange(half, dtype=like.dtype))
        order = (angle.cos(), angle.sin()) if self.wrong == "cosines first" else (angle.sin(), angle.cos())
        return torch.cat(order)

    def conv_block(self, name: str, x: Tensor) -> Tensor:
        weight, bias = (self.weights[f"{name}.0.{part}"] for part in ("weight", "bias"))
        pad = (weight.shape[-1] // 2,) * 2
        pad = (sum(pad), 0) if self.wrong == "padding of the convolutions" else pad
        h = F.conv1d(F.pad(x, pad), weight, bias)
        gain, shift = (self.weights[f"{name}.1.{part}"] for part in ("weight", "bias"))
        groups = h.view(len(h), self.groups, -1)
        variance, mean = torch.var_mean(groups, -1, correction=0, keepdim=True)
        n = ((groups - mean) / (variance + 1e-5).sqrt()).view_as(h) * gain[:, None] + shift[:, None]
        return n * torch.tanh(F.softplus(n, threshold=100))

    def block(self, name: str, x: Tensor, cond: Tensor) -> Tensor:
        s, b = self.linear(f"{name}.cond_encoder.1", cond)[..., None].chunk(2, 1)
        y = self.conv_block(f"{name}.blocks.0.block", x)
        y = ((1 + s) if self.wrong == "1 + scale" else s) * y + b
        y = self.conv_block(f"{name}.blocks.1.block", y)
        if f"{name}.residual_conv.weight" in self.weights:
            x = F.conv1d(x, *(self.weights[f"{name}.residual_conv.{part}"] for part in ("weight", "bias")))
        return x + y

    def unet(self, x: Tensor, t: int, observed: Tensor) -> Tensor:
        step = self.linear("model.diffusion_step_encoder.1", self.step_features(t, x))
        step = self.linear("model.diffusion_step_encoder.3", F.mish(step)).expand(len(x), -1)
        cond = torch.cat(
            (F.mish(step), observed if self.wrong == "mish of the step alone" else F.mish(observed)), 1
        )
        x, skips, levels = x.transpose(1, 2), [], len(self.config["down_dims"])

        def stage(name: str, x: Tensor) -> Tensor:
            for block in range(self.blocks):
                x = self.block(f"{name}.{block}", x, cond)
            return x

        def resampled(name: str) -> list[Tensor]:
            at = f"model.{name}.{self.config['blocks_per_stage']}.conv"
            return [self.weights[f"{at}.{part}"] for part in ("weight", "bias")]

        for i in range(levels):
            x = stage(f"model.down_modules.{i}", x)
            skips.append(x)
            if i < levels - 1:
                x = F.conv1d(x, *resampled(f"down_modules.{i}"), stride=2, padding=1)
        x = stage("model.mid_modules", x)
        for j in range(levels - 1):
            x = stage(f"model.up_modules.{j}", torch.cat((x, skips.pop()), 1))
            is_off = self.wrong == "padding of the transposed"
            weight, bias = resampled(f"up_modules.{j}")
            x = F.conv_transpose1d(x, weight, bias, stride=2, padding=0 if is_off else 1)
            x = x[..., :-2] if is_off else x
        if self.wrong == "three levels up":
            x = x + skips.pop()
        x = self.conv_block("model.final_conv.0.block", x)
        return F.conv1d(
            x, *(self.weights[f"model.final_conv.1.{part}"] for part in ("weight", "bias"))
        ).transpose(1, 2)

    def alphas(self) -> list[float]:
        count = self.config["noise_scheduler"]["num_train_timesteps"]
        f = [math.cos((i / count + 0.008) / 1.008 * math.pi / 2) ** 2 for i in range(count + 1)]
        found, product = [], 1.0
        for now, after in pairwise(f):
            product *= 1 - min(1 - after / now, 0.999)
            found.append(product)
        return found

    def predict_action(self, point_cloud: Tensor, agent_pos: Tensor, noise: Tensor) -> Tensor:
        """-> the whole horizon, in units of actions"""
        observed, x, alphas = self.observed(point_cloud, agent_pos), noise, self.alphas()
        stride, shares = len(alphas) // self.config["num_inference_steps"], []
        for t in reversed(range(0, len(alphas), stride)):
            a, after = alphas[t], alphas[t - stride] if t else 1.0
            m = self.unet(x, t, observed)
            shares.append((m.abs() > 1).double().mean().item())
            clipped = m.clamp(-1, 1)
            of_noise = clipped if self.wrong == "noise of the clipped prediction" else m
            e = (x - math.sqrt(a) * of_noise) / math.sqrt(1 - a)
            x = math.sqrt(after) * clipped + math.sqrt(1 - after) * e
        self.clipped = sum(shares) / len(shares)
        scale, offset = (
            self.weights[f"normalizer.params_dict.action.{part}"] for part in ("scale", "offset")
        )
        return (x - offset) / scale
