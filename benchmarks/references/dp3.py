"""3D Diffusion Policy as plain PyTorch modules, because its library cannot be installed beside ours: from
clouds, states and noise on the host to actions on the device.

Ten steps of a scheduler whose table is on the host, as the library's; group norms and Mish are PyTorch's. Its
settings: as it is; compiled, each step a call of a compiled net that replays CUDA graphs; and captured, all
that a call does, compiled, in one CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, requests


def plain(config: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    step_dim, dims, blocks = (
        config[key] for key in ("diffusion_step_embed_dim", "down_dims", "blocks_per_stage")
    )
    taps, groups, features = config["kernel_size"], config["n_groups"], config["encoder_output_dim"]
    cond = step_dim + config["n_obs_steps"] * (features + config["state_mlp_size"][-1])

    def conv_block(inputs: int, outputs: int) -> nn.Sequential:
        conv = nn.Conv1d(inputs, outputs, taps, padding=taps // 2)
        return nn.Sequential(conv, nn.GroupNorm(groups, outputs), nn.Mish())

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.first, self.second = conv_block(inputs, outputs), conv_block(outputs, outputs)
            self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(cond, 2 * outputs))
            self.residual = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

        def forward(self, x: torch.Tensor, cond: torch.Tensor) -> torch.Tensor:
            scale, shift = self.cond_encoder(cond)[..., None].chunk(2, 1)
            return self.second(scale * self.first(x) + shift) + self.residual(x)

    def stage(inputs: int, outputs: int) -> nn.ModuleList:
        return nn.ModuleList(Block(outputs if block else inputs, outputs) for block in range(blocks))

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = []
            for inputs, outputs in ((3, 64), (64, 128), (128, 256)):
                layers += [nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.ReLU()]
            self.points = nn.Sequential(*layers)
            self.projection = nn.Sequential(nn.Linear(256, features), nn.LayerNorm(features))
            hidden, last = config["state_mlp_size"]
            self.state = nn.Sequential(
                nn.Linear(config["state_dim"], hidden), nn.ReLU(), nn.Linear(hidden, last)
            )
            self.step = nn.Sequential(
                nn.Linear(step_dim, 4 * step_dim), nn.Mish(), nn.Linear(4 * step_dim, step_dim)
            )
            ins = [config["action_dim"], *dims[:-1]]
            self.down = nn.ModuleList(stage(*pair) for pair in zip(ins, dims))
            self.downsample = nn.ModuleList(nn.Conv1d(dim, dim, 3, 2, 1) for dim in dims[:-1])
            self.middle = stage(dims[-1], dims[-1])
            self.up = nn.ModuleList(
                stage(2 * wide, narrow) for narrow, wide in zip(dims[-2::-1], dims[:0:-1])
            )
            self.upsample = nn.ModuleList(nn.ConvTranspose1d(dim, dim, 4, 2, 1) for dim in dims[-2::-1])
            self.final = nn.Sequential(conv_block(dims[0], dims[0]), nn.Conv1d(dims[0], ins[0], 1))
            half = step_dim // 2
            frequencies = torch.exp(torch.arange(half, device="cpu") * (-math.log(10000) / (half - 1)))
            self.register_buffer("frequencies", frequencies.to(torch.get_default_device()), persistent=False)

        def observed(self, cloud: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            p = self.projection(self.points(cloud[..., :3]).amax(2))
            return torch.cat((p, self.state(state)), -1).flatten(1)

        def unet(self, x: torch.Tensor, t: torch.Tensor, observed: torch.Tensor) -> torch.Tensor:
            angle = t * self.frequencies
            step = self.step(torch.cat((angle.sin(), angle.cos()))[None]).expand(len(x), -1)
            cond, x, skips = torch.cat((step, observed), 1), x.transpose(1, 2), []
            for level, stage in enumerate(self.down):
                for block in stage:
                    x = block(x, cond)
                skips.append(x)
                if level < len(self.downsample):
                    x = self.downsample[level](x)
            for block in self.middle:
                x = block(x, cond)
            for stage, upsample in zip(self.up, self.upsample):
                x = torch.cat((x, skips.pop()), 1)
                for block in stage:
                    x = block(x, cond)
                x = upsample(x)
            return self.final(x).transpose(1, 2)

    return Policy()


class Plain:
    settings: ClassVar[tuple[str, ...]] = ("default", "compiled", "captured")

    def __init__(self, machine: Machine) -> None:
        import diffusers
        import torch

        self._machine, self._device = machine, torch.device(machine.device)
        self._policy = machine.filled(partial(plain, machine.config))
        self._scheduler = diffusers.DDIMScheduler(**machine.config["noise_scheduler"])
        self._scheduler.set_timesteps(machine.config["num_inference_steps"])
        self._times = self._scheduler.timesteps.tolist()
        # Read by each step: a tensor that crosses to the device would end a capture.
        self._times_S = torch.tensor(self._times, dtype=torch.float32).to(self._device)
        self.version = f"{torch.__version__}, diffusers {diffusers.__version__}"

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch

        from fastkernels.nn.batching import sent

        torch.compiler.reset()
        drawn, config = requests(workload, self._machine), self._machine.config
        noise = [
            torch.randn(
                config["horizon"], config["action_dim"], generator=torch.Generator().manual_seed(one["seed"])
            )
            for one in drawn
        ]
        host = [
            torch.stack(each)
            for each in ([r["point_cloud"] for r in drawn], [r["agent_pos"] for r in drawn], noise)
        ]
        unet, observed = self._policy.unet, self._policy.observed
        if setting == "compiled":
            unet, observed = (torch.compile(each, mode="reduce-overhead") for each in (unet, observed))
        elif setting == "captured":
            unet, observed = torch.compile(unet), torch.compile(observed)
        call: Callable[..., Any] = partial(self._sampled, unet, observed)
        with torch.inference_mode():
            if setting == "captured":
                call = self._captured(call, [sent(each, self._device) for each in host])
        return torch.inference_mode()(lambda: len(call(*(sent(each, self._device) for each in host))))

    def _sampled(self, unet: Any, observed: Any, cloud: Any, state: Any, noise: Any) -> Any:
        seen, x = observed(cloud, state).clone(), noise
        for at, t in enumerate(self._times):
            x = self._scheduler.step(unet(x, self._times_S[at], seen), t, x).prev_sample
        return x

    def _captured(self, call: Callable[..., Any], static: list[Any]) -> Callable[..., Any]:
        import torch

        if self._machine.device != "cuda":
            raise RuntimeError("CUDA graphs need a GPU")
        for _ in range(3):
            call(*static)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call(*static)

        def replayed(*given: Any) -> Any:
            for old, new in zip(static, given, strict=True):
                old.copy_(new, non_blocking=True)
            graph.replay()
            return result.clone()

        return replayed


COMPARISONS = [
    Comparison(
        "dp3",
        "torch",
        Ours,
        Plain,
        partial(one_batch, "dp3"),
        bars=dict.fromkeys(("robot-1env", "robot-batch", "robot-single", "robot-batch-8"), 1.0),
    )
]
