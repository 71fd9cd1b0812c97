"""Oasis as it is published: open-oasis' network and loop, written here as plain PyTorch modules.

open-oasis is not on a package index (a git repository alone), so this is its mathematics and not its code:
SDPA attention, every step recomputes the whole window, half precision as its autocast computes, the decoder
in float32.
`default` runs it so; `compiled` compiles and captures the network, once for each length of the window, and
the halves of the autoencoder. `kept` ones keep keys and values of frames that are done, as ours do, which
open-oasis does not: what a user could write for himself. All draw ours' noise and end with the video.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, requests

BAR = 1.29  # what was published for a workload of open-oasis


class WithVideo(Ours):
    """Ours, to pixels: a batch's latents are decoded too."""

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        batch = requests(workload, self._machine)
        for _ in range(2):  # the second call of a stage is captured
            self._model.finish(self._model.run(batch), batch)
        return lambda: len(self._model.finish(self._model.run(batch), batch))


class Plain:
    settings: ClassVar[tuple[str, ...]] = ("default", "compiled", "kept", "compiled-kept")

    def __init__(self, machine: Machine) -> None:
        import torch

        self._machine, self.version = machine, f"equations, torch {torch.__version__}"
        self._network = machine.filled(partial(_network(), machine.config))
        self._encoder = machine.filled(partial(_autoencoder("enc"), machine.config["vae"]))
        self._decoder = machine.filled(partial(_autoencoder("dec"), machine.config["vae"])).float()

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch

        from fastkernels.nn import diffusion_forcing

        torch.compiler.reset()
        torch._dynamo.config.recompile_limit = 256
        config, device = self._machine.config, self._machine.device
        dtype = getattr(torch, self._machine.dtype)
        network, encode, decode = self._network, self._encoder, self._decoder
        if setting.startswith("compiled"):
            network, encode, decode = (
                torch.compile(part, mode="reduce-overhead", dynamic=False)
                for part in (network, encode, decode)
            )
        is_kept = setting.endswith("kept")
        drawn = requests(workload, self._machine)
        scaling, context = config["scaling_factor"], config["stabilization_level"] - 1
        steps = diffusion_forcing.steps_of(
            drawn[0]["steps"], diffusion_forcing.alphas_cumprod(config["max_noise_level"])
        )
        dit = config["dit"]
        shape = (dit["in_channels"], dit["input_h"], dit["input_w"])
        images = torch.stack([request["image"] for request in drawn])
        actions_BNA = torch.stack([request["actions"] for request in drawn])
        count = actions_BNA.shape[1]
        noise = torch.stack([_noise(request["seed"], count, shape) for request in drawn])

        @torch.inference_mode()
        def run() -> int:
            torch.compiler.cudagraph_mark_step_begin()
            pixels = (images.to(device).to(dtype) / 127.5 - 1).permute(0, 3, 1, 2)
            latents = scaling * encode(pixels)[:, None].float()
            acted = torch.nn.functional.pad(actions_BNA.to(device, dtype), (0, 0, 1, 0))
            drawn_noise = noise.to(device).clamp(-config["noise_abs_max"], config["noise_abs_max"])
            caches = self._network.caches(len(latents), count + 1) if is_kept else None
            for i in range(1, count + 1):
                x = drawn_noise[:, i - 1]
                for step, (level, alpha, next_alpha) in enumerate(steps):
                    first = 0 if not is_kept or i == 1 else i - 1
                    first = i if is_kept and step else first
                    window = torch.cat((latents[:, first:], x[:, None]), dim=1)
                    t = torch.full(window.shape[:2], context, dtype=torch.float32, device=device)
                    t[:, -1] = level
                    torch.compiler.cudagraph_mark_step_begin()
                    v = network(window.to(dtype), t, acted[:, first : i + 1], first, caches)[:, -1]
                    x = diffusion_forcing.ddim_step(x, v, alpha, next_alpha)
                latents = torch.cat((latents, x[:, None]), dim=1)
            torch.compiler.cudagraph_mark_step_begin()
            video = decode((latents[:, 1:] / scaling).flatten(0, 1))
            return len(((video + 1) / 2).clamp(0, 1).unflatten(0, (len(latents), count)))

        return run


def _noise(seed: int, frames: int, shape: tuple[int, ...]) -> Any:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randn(shape, generator=generator) for _ in range(frames)])


def _axial(rows: int, columns: int, dim: int, most: float) -> tuple[Any, Any]:
    """Cosines and sines [L, dim] of pairs."""
    import torch

    rates = torch.pi * torch.linspace(1, most / 2, dim // 2)
    y, x = torch.linspace(-1, 1, rows), torch.linspace(-1, 1, columns)
    angles = torch.cat(
        ((y[:, None] * rates).repeat_interleave(columns, 0), (x[:, None] * rates).repeat(rows, 1)), dim=1
    )
    return angles.cos(), angles.sin()


def _turned(x: Any, cos: Any, sin: Any) -> Any:
    """x [.., L, K]; features behind the angles stay."""
    import torch

    size = 2 * cos.shape[1]
    even, odd = x[..., :size].float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    return torch.cat((turned.to(x.dtype), x[..., size:]), dim=-1)


def _network() -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Half(nn.Module):
        def __init__(self, size: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.qkv, self.out = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size)
            self.fc1, self.fc2 = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
            self.modulation = nn.Linear(size, 6 * size)

        def forward(self, x: Any, c: Any, turns: Any, first: int, cache: Any, is_temporal: bool) -> Any:
            """x [B, T, L, D], c [B, T, D]"""
            parts = self.modulation(F.silu(c))[:, :, None].chunk(6, dim=-1)
            shift, scale, gate, shift2, scale2, gate2 = parts
            n = F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift
            qkv = self.qkv(n).unflatten(-1, (3, self.heads, -1))  # B T L 3 H K
            q, k, v = (
                qkv.permute(3, 0, 2, 4, 1, 5) if is_temporal else qkv.permute(3, 0, 1, 4, 2, 5)
            ).unbind()
            q, k = _turned(q, *turns), _turned(k, *turns)
            if is_temporal and cache is not None:
                last = first + x.shape[1]
                cache[0][..., first:last, :].copy_(k)
                cache[1][..., first:last, :].copy_(v)
                k, v = (part[..., :last, :] for part in cache)
            is_causal = is_temporal and q.shape[-2] == k.shape[-2] > 1
            mask = None
            if is_temporal and not is_causal and q.shape[-2] > 1:
                sides = (q.shape[-2], k.shape[-2])
                mask = torch.ones(sides, dtype=torch.bool, device=x.device).tril(sides[1] - sides[0])
            o = [part.flatten(0, 1) for part in (q, k, v)]
            o = F.scaled_dot_product_attention(*o, attn_mask=mask, is_causal=is_causal)
            o = o.unflatten(0, q.shape[:2])
            o = (o.permute(0, 3, 1, 2, 4) if is_temporal else o.permute(0, 1, 3, 2, 4)).flatten(3)
            x = x + gate * self.out(o)
            n = F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale2) + shift2
            return x + gate2 * self.fc2(F.gelu(self.fc1(n), approximate="tanh"))

    class Network(nn.Module):
        def __init__(self, config: dict[str, Any]) -> None:
            super().__init__()
            dit = config["dit"]
            self.size, self.heads, self.patch = dit["hidden_size"], dit["num_heads"], dit["patch_size"]
            self.channels, head = dit["in_channels"], self.size // self.heads
            self.grid = dit["input_h"] // self.patch, dit["input_w"] // self.patch
            self.patch_projection = nn.Conv2d(self.channels, self.size, self.patch, self.patch)
            self.time = nn.Sequential(nn.Linear(256, self.size), nn.SiLU(), nn.Linear(self.size, self.size))
            self.acted = nn.Linear(dit["external_cond_dim"], self.size)
            self.halves = nn.ModuleList(Half(self.size, self.heads) for _ in range(2 * dit["depth"]))
            self.last_modulation = nn.Linear(self.size, 2 * self.size)
            self.last = nn.Linear(self.size, self.patch**2 * self.channels)
            device = self.last.weight.device
            with torch.device("cpu"):
                rates = 10000.0 ** -(torch.arange(0, head, 2) / head)
                angles = torch.arange(dit["max_frames"])[:, None] * rates
                frequencies = 10000.0 ** -(torch.arange(128) / 128)
                tables = (*_axial(*self.grid, head // 2, 256.0), angles.cos(), angles.sin(), frequencies)
            self.tables = [table.float().to(device) for table in tables]

        def caches(self, clips: int, frames: int) -> Any:
            places, head = self.grid[0] * self.grid[1], self.size // self.heads
            shape = (clips, places, self.heads, frames, head)
            pools = [[self.last.weight.new_zeros(shape) for _ in range(2)] for _ in self.halves[::2]]
            for pool in (pool for pair in pools for pool in pair):
                torch._dynamo.mark_static_address(pool)  # written in place, and captured all the same
            return pools

        def forward(self, x: Any, t: Any, actions: Any, first: int, caches: Any) -> Any:
            """x [B, T, C, h, w], the frames from `first` on"""
            cos_L, sin_L, cos_T, sin_T, frequencies = self.tables
            clips, frames = x.shape[:2]
            here = slice(first, first + frames)
            angles = t[..., None] * frequencies
            sinusoid = torch.cat((angles.cos(), angles.sin()), dim=-1).to(x.dtype)
            c = self.time(sinusoid) + self.acted(actions)
            h = (
                self.patch_projection(x.flatten(0, 1))
                .flatten(2)
                .transpose(1, 2)
                .unflatten(0, (clips, frames))
            )
            for i, half in enumerate(self.halves):
                is_temporal = bool(i % 2)
                turns = (cos_T[here], sin_T[here]) if is_temporal else (cos_L, sin_L)
                cache = caches[i // 2] if caches is not None else None
                h = half(h, c, turns, first, cache, is_temporal)
            shift, scale = self.last_modulation(F.silu(c))[:, :, None].chunk(2, dim=-1)
            out = self.last(F.layer_norm(h, h.shape[-1:], eps=1e-6) * (1 + scale) + shift)
            out = out.unflatten(-1, (self.patch, self.patch, self.channels)).unflatten(2, self.grid)
            return out.permute(0, 1, 6, 2, 4, 3, 5).reshape(x.shape)

    return Network


def _autoencoder(half: str) -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self, size: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(size, 1e-6), nn.LayerNorm(size, 1e-6)
            self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
            self.fc1, self.fc2 = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

        def forward(self, x: Any, turns: Any) -> Any:
            q, k, v = (
                self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
            )
            o = F.scaled_dot_product_attention(_turned(q, *turns), _turned(k, *turns), v)
            x = x + self.out(o.transpose(1, 2).flatten(2))
            return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))

    class Autoencoder(nn.Module):
        def __init__(self, vae: dict[str, Any]) -> None:
            super().__init__()
            size, heads, self.patch = vae[f"{half}_dim"], vae[f"{half}_heads"], vae["patch_size"]
            self.latent, values = vae["latent_dim"], 3 * self.patch**2
            self.grid = vae["input_height"] // self.patch, vae["input_width"] // self.patch
            self.first = nn.Linear(values if half == "enc" else self.latent, size)
            self.blocks = nn.ModuleList(Block(size, heads) for _ in range(vae[f"{half}_depth"]))
            self.norm = nn.LayerNorm(size, 1e-6)
            self.last = nn.Linear(size, 2 * self.latent if half == "enc" else values)
            device = self.last.weight.device
            with torch.device("cpu"):
                turns = _axial(*self.grid, size // heads // 4, float(self.grid[0] * self.grid[1]))
            self.turns = [table.float().to(device) for table in turns]

        def forward(self, x: Any) -> Any:
            """Images [B, 3, Y, X] to latents [B, C, h, w], or back."""
            if half == "enc":
                x = F.pixel_unshuffle(x, self.patch)
            x = self.first(x.flatten(2).transpose(1, 2))
            for block in self.blocks:
                x = block(x, self.turns)
            x = self.last(self.norm(x)).transpose(1, 2).unflatten(2, self.grid)
            return x[:, : self.latent] if half == "enc" else F.pixel_shuffle(x, self.patch)

    return Autoencoder


_workloads: Any = partial(one_batch, "oasis")
COMPARISONS = [
    Comparison(
        "oasis",
        "torch",
        WithVideo,
        Plain,
        _workloads,
        bars=dict.fromkeys(
            ("world-short", "world-medium", "world-long", "world-denoise", "world-latency"), BAR
        ),
    )
]
