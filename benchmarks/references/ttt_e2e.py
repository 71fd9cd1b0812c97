"""TTT-E2E as plain PyTorch with torch.autograd, because its library needs another Python and JAX: from token
ids on the host to losses on the device.

Attention is PyTorch's own, in the suffix over a rolling cache of a window and with a mask; the prefix reads
the whole sequence at once. Its settings: as it is; and compiled, where a chunk's losses and their gradient
are compiled graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, requests


def plain(config: dict[str, Any]) -> Any:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    hidden, width, heads = (
        config[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads")
    )
    size, eps, window = hidden // heads, config["rms_norm_eps"], config["sliding_window_size"]
    layers, suffix, chunk = (config[key] for key in ("num_hidden_layers", "suffix_len", "mini_batch_size"))

    class Block(nn.Module):
        def __init__(self, learns: bool) -> None:
            super().__init__()
            self.seq_norm, self.seq_post_norm, self.ffn_norm, self.ffn_post_norm = (
                nn.RMSNorm(hidden, eps) for _ in range(4)
            )
            self.prime_norms = nn.ModuleList(nn.RMSNorm(hidden, eps) for _ in range(2 * learns))
            self.q_norm, self.k_norm = nn.RMSNorm(size, eps), nn.RMSNorm(size, eps)
            self.qkv, self.wo = nn.Linear(hidden, 3 * hidden, False), nn.Linear(hidden, hidden, False)
            self.gate_up, self.down = nn.Linear(hidden, 2 * width, False), nn.Linear(width, hidden, False)

        def forward(self, h: Tensor, turn: Tensor, mask: Tensor | None, cache: Any, prime: Any) -> Any:
            q, k, v = self.qkv(self.seq_norm(h)).unflatten(-1, (3, heads, size)).unbind(1)
            q, k = turned(self.q_norm(q), turn), turned(self.k_norm(k), turn)
            if cache is not None:
                k, v = torch.cat((cache[0], k)), torch.cat((cache[1], v))
            q_, k_, v_ = (x.transpose(0, 1)[None] for x in (q, k, v))
            o = F.scaled_dot_product_attention(q_, k_, v_, mask, is_causal=mask is None)[0].transpose(0, 1)
            h = h + self.seq_post_norm(self.wo(o.flatten(1)))
            if prime is not None:
                before, after = self.prime_norms
                h = h + after(gated(before(h), prime[: 2 * width], prime[2 * width :].t()))
            ffn = gated(self.ffn_norm(h), self.gate_up.weight, self.down.weight)
            return h + self.ffn_post_norm(ffn), (k[-window:].detach(), v[-window:].detach())

    def gated(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        gate, up = F.linear(x, gate_up).chunk(2, -1)
        return F.linear(F.silu(gate) * up, down)

    def turned(x: Tensor, turn: Tensor) -> Tensor:
        """turn: float32 [T, K / 2, 2], cosines and sines of pairs."""
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = turn[:, None].unbind(-1)
        return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2).to(x.dtype)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte = nn.Embedding(config["vocab_size"], hidden)
            self.ln_f = nn.RMSNorm(hidden, eps)
            self.prefix = nn.ModuleList(Block(False) for _ in range(layers - suffix))
            self.suffix = nn.ModuleList(Block(True) for _ in range(suffix))
            self.prime = nn.Parameter(torch.empty(suffix * 3 * width, hidden, dtype=torch.float32))
            self.chunk_losses: Callable[..., Any] = self._chunk_losses

        def turns(self, tokens: int) -> Tensor:
            device = self.wte.weight.device
            rates = config["rope_theta"] ** (-torch.arange(0, size, 2, device=device).double() / size)
            angle = torch.arange(tokens, device=device).double()[:, None] * rates
            return torch.stack((angle.cos(), angle.sin()), -1).float()

        def mask(self, queries: int, keys: int) -> Tensor | None:
            if queries == keys <= window:
                return None  # causal
            device = self.wte.weight.device
            at = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(
                keys, device=device
            )
            return (at >= 0) & (at < window)

        def _chunk_losses(
            self, h: Tensor, targets: Tensor, prime: Tensor, turn: Tensor, mask: Any, caches: Any
        ) -> Any:
            weights = prime.to(h.dtype).unflatten(0, (suffix, -1))
            found = []
            for block, weight, cache in zip(self.suffix, weights, caches, strict=True):
                h, cache = block(h, turn, mask, cache, weight)
                found.append(cache)
            logits = F.linear(self.ln_f(h), self.wte.weight).float()
            return F.cross_entropy(logits, targets, reduction="none"), found

        def read(self, ids: Tensor, targets: Tensor, learn: bool) -> Tensor:
            turns, h = self.turns(len(ids)), self.wte(ids)
            with torch.no_grad():
                mask = self.mask(len(ids), len(ids))
                for block in self.prefix:
                    h, _ = block(h, turns, mask, None, None)
            prime, caches, nll = self.prime.detach(), [None] * suffix, []
            of_step = config["inner_optimizer"]
            for start in range(0, len(ids), chunk):
                here = slice(start, start + chunk)
                kept = 0 if caches[0] is None else len(caches[0][0])
                with torch.set_grad_enabled(learn):
                    weight = prime.requires_grad_(learn)
                    given = (
                        h[here],
                        targets[here],
                        weight,
                        turns[here],
                        self.mask(chunk, kept + chunk),
                        caches,
                    )
                    losses, caches = self.chunk_losses(*given)
                    if learn:
                        (grad,) = torch.autograd.grad(losses.mean(), weight)
                        most = of_step["clip_gradient"]
                        factor = most / torch.linalg.vector_norm(grad).clamp(min=most)
                        prime = (weight - of_step["lr"] * factor * grad).detach()
                nll.append(losses.detach())
            return torch.cat(nll)

    return Reader()


class Plain:
    settings: ClassVar[tuple[str, ...]] = ("default", "compiled")

    def __init__(self, machine: Machine) -> None:
        import torch

        self._machine, self._device = machine, torch.device(machine.device)
        self._reader = machine.filled(partial(plain, machine.config))
        self.version = f"{torch.__version__}"

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch

        from fastkernels.nn.batching import sent

        torch.compiler.reset()
        reader, drawn = self._reader, requests(workload, self._machine)
        compiles = setting == "compiled"
        reader.chunk_losses = torch.compile(reader._chunk_losses) if compiles else reader._chunk_losses

        def call() -> int:
            for one in drawn:
                ids = sent(one["input_ids"], self._device)
                reader.read(ids, ids.roll(-1), bool(one["learn"]))
            return len(drawn)

        return call


COMPARISONS = [
    Comparison(
        "ttt_e2e",
        "torch",
        Ours,
        Plain,
        partial(one_batch, "ttt_e2e"),
        bars=dict.fromkeys(
            ("read-learning", "read-frozen", "read-learning-single", "read-frozen-single"), 1.0
        ),
    )
]
