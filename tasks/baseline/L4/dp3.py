"""3D Diffusion Policy: what a robot sees and its state to the actions that it does next, denoised from noise.

    o = [encoder(points, state) of each frame],  x = noise
    m = unet(x, film(t, o));  x = ddim(x, m)                                for each timestep t, high to low
    action_pred = (x - offset) / scale

B requests, N points of P numbers (coordinates, then colours, which are normalised and left out), S numbers of
a state, H frames of A numbers of an action. Points, states and actions are normalised by a scale and an
offset for each number. Modulations of all timesteps are one product ahead of the loop. Parameters and
activations have the dtype of the module, x that and at least float32. `config` has the policy's settings by
the names of its own configuration, and `blocks_per_stage`: 1 as SimpleDP3, 2 as DP3.
Mirrors diffusion_policy_3d.policy.dp3.DP3 and diffusion_policy_3d.policy.simple_dp3.SimpleDP3: `forward` is
predict_action, with the noise given.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.batching import described, require_values
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.ddim import Schedule
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.program import Call, Place, Program, RequestError
from fastkernels.nn.weight_map import WeightMap

from ..L2.point_encoder import DP3Encoder
from ..L2.timestep_embedding import FilmEncoder
from ..L3.unet1d import ConditionalUnet1D, block_channels

COORDINATES = 3  # of a point; what follows is its colour
MOST_SEED = 2**64 - 1


class DP3(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        require_supported(reader)
        self.horizon, self.num_frames = reader.integer("horizon"), reader.integer("n_obs_steps")
        self.cloud = (self.num_frames, reader.integer("num_points"), reader.integer("point_dim", COORDINATES))
        self.state = (self.num_frames, reader.integer("state_dim"))
        self.actions = (self.horizon, reader.integer("action_dim"))
        self.executed = executed_frames(reader, self.horizon, self.num_frames)
        unet = unet_arguments(reader, self.horizon)
        steps = reader.integer("num_inference_steps")
        self.schedule = Schedule.of(reader.section("noise_scheduler"), steps)

        sizes = {"point_cloud": self.cloud[-1], "agent_pos": self.state[-1], "action": self.actions[-1]}
        self.normalizer = nn.ModuleDict({name: normalizer(size) for name, size in sizes.items()})
        features, state_mlp = reader.integer("encoder_output_dim"), reader.integers("state_mlp_size")
        self.obs_encoder = DP3Encoder(self.state[-1], features, state_mlp)
        self.model = ConditionalUnet1D(**unet)
        step_dim = reader.integer("diffusion_step_embed_dim")
        cond_dim = self.num_frames * (features + state_mlp[-1])
        self.film = FilmEncoder(step_dim, cond_dim, sum(self.model.film_sizes))
        self.weight_map = weight_map(unet, len(state_mlp))

    def forward(self, point_cloud: Tensor, agent_pos: Tensor, noise: Tensor) -> Tensor:
        """point_cloud [B, F, N, P] and agent_pos [B, F, S], of F frames, noise [B, H, A] -> action_pred
        [B, H, A]"""
        films = self.modulations(self.observe(point_cloud, agent_pos))
        x = noise.to(torch.promote_types(noise.dtype, torch.float32))
        for step, film in zip(self.schedule, films):
            x = step(x, self.model(x.to(noise.dtype), film))
        action = self.normalizer["action"]
        return ((x - action["offset"]) / action["scale"]).to(noise.dtype)

    def observe(self, point_cloud: Tensor, agent_pos: Tensor) -> Tensor:
        """-> the features of all frames [B, O], those of the first frame first"""
        points, states = (
            torch.addcmul(self.normalizer[name]["offset"], seen, self.normalizer[name]["scale"])
            for name, seen in (("point_cloud", point_cloud), ("agent_pos", agent_pos))
        )
        features = self.obs_encoder(points.flatten(0, 1)[..., :COORDINATES], states.flatten(0, 1))
        return features.view(len(point_cloud), -1)

    def modulations(self, global_cond: Tensor) -> Tensor:
        """global_cond [B, O] -> [steps, B, M]"""
        times, batch = self.schedule.timesteps, len(global_cond)
        steps = torch.arange(
            times.start, times.stop, times.step, dtype=torch.float32, device=global_cond.device
        )
        film = self.film(steps.repeat_interleave(batch), global_cond.repeat(len(times), 1))
        return film.view(len(times), batch, -1)

    def examples(self, run: str, batch: Batch) -> Examples:
        """A request for each row of the batch."""
        requests = len(batch.seq_lens)
        yield run, tuple(torch.empty(requests, *shape) for shape in (self.cloud, self.state, self.actions))

    def program(self, point_cloud: Tensor, agent_pos: Tensor, seed: int = 0) -> Program:
        """point_cloud [frames, N, P], agent_pos [frames, S], as sensors give them, the latest frame last ->
        action_pred [H, A], and what of it is executed, action [n_action_steps, A]"""
        require("point_cloud", point_cloud, self.cloud)
        require("agent_pos", agent_pos, self.state)
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= MOST_SEED:
            raise RequestError(f"seed must be an integer from 0 to {MOST_SEED}, not {seed!r:.60}")
        noise_HA = torch.randn(self.actions, generator=torch.Generator().manual_seed(seed), device="cpu")
        inputs = (each.to(self.place.dtype) for each in (point_cloud, agent_pos, noise_HA))
        action_pred = yield Call("forward", *inputs)
        return {"action": action_pred[self.executed], "action_pred": action_pred}


def require(name: str, given: Any, shape: tuple[int, ...]) -> None:
    """RequestError unless it is a tensor of finite floats of this shape."""
    if not isinstance(given, Tensor) or not given.is_floating_point() or given.shape != shape:
        raise RequestError(f"{name} must be floats {list(shape)}, not {described(given)}")
    require_values(name, given)
    if not bool(given.isfinite().all()):
        raise RequestError(f"{name} has values that are not finite")


def normalizer(size: int) -> nn.ParameterDict:
    """y = scale x + offset, for each of so many numbers."""
    names = ("scale", "offset")
    return nn.ParameterDict({name: nn.Parameter(torch.empty(size), requires_grad=False) for name in names})


def require_supported(config: ConfigReader) -> None:
    """UsageError for variants of the policy that are other mathematics."""
    config.choice("pointnet_type", {"pointnet": None}, default="pointnet")
    config.choice("condition_type", {"film": None}, default="film")
    config.refuse(("use_pc_color",))
    cloud = config.section("pointcloud_encoder_cfg")
    cloud.choice("final_norm", {"layernorm": None}, default="layernorm")
    for section, key in ((cloud, "use_layernorm"), (config, "obs_as_global_cond")):
        if not section.flag(key, default=True):
            raise section.error(key, "false is not supported")
    for place in ("down", "mid", "up"):
        if not config.flag(f"use_{place}_condition", default=True):
            raise config.error(f"use_{place}_condition", "false is not supported")
    if config.integer("point_dim", COORDINATES) < COORDINATES:
        raise config.error("point_dim", f"must be at least the {COORDINATES} coordinates of a point")


def executed_frames(config: ConfigReader, horizon: int, frames: int) -> slice:
    """Of the horizon: from the frame that was seen last."""
    first = frames - 1
    last = first + config.integer("n_action_steps")
    if last > horizon:
        raise config.error("n_action_steps", f"ends {last} frames on, behind the horizon, {horizon}")
    return slice(first, last)


def unet_arguments(config: ConfigReader, horizon: int) -> dict[str, Any]:
    down_dims, groups = config.integers("down_dims"), config.integer("n_groups", default=8)
    if uneven := [dim for dim in down_dims if dim % groups]:
        raise config.error("down_dims", f"{uneven[0]} channels are no {groups} groups of one size (n_groups)")
    if horizon % (halved := 2 ** (len(down_dims) - 1)):
        raise config.error("horizon", f"{horizon} is no multiple of {halved}, which the levels halve it by")
    if (taps := config.integer("kernel_size")) % 2 == 0:
        raise config.error("kernel_size", f"must be odd, so that frames keep their places, not {taps}")
    return {
        "input_dim": config.integer("action_dim"),
        "down_dims": down_dims,
        "kernel_size": taps,
        "n_groups": groups,
        "blocks_per_stage": config.integer("blocks_per_stage"),
    }


def weight_map(unet: dict[str, Any], state_layers: int) -> WeightMap:
    """Names of a policy's state dict. What modulates the blocks is one matrix here."""
    levels, blocks = len(unet["down_dims"]), unet["blocks_per_stage"]
    names = {f"normalizer.params_dict.*.{part}": f"normalizer.*.{part}" for part in ("scale", "offset")}
    for layer in range(3):
        names[f"obs_encoder.extractor.mlp.{3 * layer}.*"] = f"obs_encoder.extractor.linears.{layer}.*"
        names[f"obs_encoder.extractor.mlp.{3 * layer + 1}.*"] = f"obs_encoder.extractor.norms.{layer}.*"
    for layer in range(state_layers):
        names[f"obs_encoder.state_mlp.{2 * layer}.*"] = f"obs_encoder.state_mlp.layers.{layer}.linear.*"
    names |= {
        "obs_encoder.extractor.final_projection.0.*": "obs_encoder.extractor.projection.*",
        "obs_encoder.extractor.final_projection.1.*": "obs_encoder.extractor.final_norm.*",
        "model.diffusion_step_encoder.1.*": "film.linear_1.*",
        "model.diffusion_step_encoder.3.*": "film.linear_2.*",
        "model.final_conv.0.block.0.*": "model.final_block.conv.*",
        "model.final_conv.0.block.1.*": "model.final_block.norm.*",
        "model.final_conv.1.*": "model.final_conv.*",
        f"model.down_modules.*.{blocks}.conv.*": "model.downsamples.*.*",
        f"model.up_modules.*.{blocks}.conv.*": "model.upsamples.*.*",
    }
    stages = [*(f"down_modules.{i}" for i in range(levels)), "mid_modules"]
    stages += [f"up_modules.{i}" for i in range(levels - 1)]
    for stage in ("down_modules.*", "mid_modules", "up_modules.*"):
        block = f"model.{stage}.*"
        names |= {
            f"{block}.blocks.{half}.block.{part}.*": f"{block}.{name}{half + 1}.*"
            for half in range(2)
            for part, name in enumerate(("conv", "norm"))
        }
        names[f"{block}.residual_conv.*"] = f"{block}.residual_conv.*"
    channels = block_channels(unet["input_dim"], unet["down_dims"], blocks)
    rows = {
        f"model.{stage}.{block}.cond_encoder.1.*": 2 * outputs
        for stage, of_stage in zip(stages, channels, strict=True)
        for block, (_, outputs) in enumerate(of_stage)
    }
    ignored = ("normalizer.params_dict.*.input_stats.*", "mask_generator._dummy_variable")
    return WeightMap(names, {"film.cond_encoder.*": rows}, ignored)
