"""TTT-E2E from its equations, with the names of its checkpoint's tensors: whole matrices of scores, no caches
of keys but those that a chunk is given, and torch.autograd for the step; no modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

WRONG = (
    "halves turned", "no norm of queries", "no norm behind", "one key more", "one key less", "clip by block",
    "no clip", "sum of the losses", "the last block alone", "loss after the step", "chunks forget",
    "keys are constants", "gate and up swapped", "prime behind the ffn", "untied scale", "all learn twice",
)  # fmt: skip
MODEL = "language_model.model."


@dataclass
class Reader:
    """wrong: one of WRONG, a mistake that implementations make. norms: of the gradients of the last
    sequence."""

    weights: Mapping[str, Tensor]
    config: Mapping[str, Any]
    wrong: str = ""
    norms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = self.config
        self.layers, self.suffix = config["num_hidden_layers"], config["suffix_len"]
        self.heads = config["num_attention_heads"]
        self.head_dim = config["hidden_size"] // self.heads
        change = {"one key more": 1, "one key less": -1}.get(self.wrong, 0)
        self.window = config["sliding_window_size"] + change

    def of(self, name: str, block: int) -> Tensor:
        """A block's part of a stacked tensor."""
        return self.weights[f"{MODEL}h.{name}.weight"][block]

    def prime(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """w1, w3 and w2 of each block of the suffix, inputs as rows."""
        names = [f"prime_storage.feed_forward_prime.{part}" for part in ("w1", "w3", "w2")]
        return [tuple(self.of(name, j) for name in names) for j in range(self.suffix)]  # pyright: ignore

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"]).sqrt() * weight

    def mlp(self, x: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Tensor:
        if self.wrong == "gate and up swapped":
            w1, w3 = w3, w1
        return (F.silu(x @ w1) * (x @ w3)) @ w2

    def turned(self, x: Tensor, first: int) -> Tensor:
        """[T, H, K], of which token t stands at first + t: a pair of features is a complex number."""
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        places = torch.arange(first, first + len(x), dtype=torch.float64)
        angle = places[:, None] * self.config["rope_theta"] ** -exponents
        turn = torch.polar(torch.ones_like(angle), angle)[:, None]
        if self.wrong == "halves turned":
            half = self.head_dim // 2
            pairs = torch.complex(x[..., :half], x[..., half:]) * turn
            return torch.cat((pairs.real, pairs.imag), -1)
        pairs = torch.complex(x[..., 0::2], x[..., 1::2]) * turn
        return torch.stack((pairs.real, pairs.imag), -1).flatten(-2)

    def attend(self, x: Tensor, block: int, cache: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Any]:
        """x [T, D] behind a cache of keys, not turned, and values; and the next cache."""
        q, k, v = (
            (x @ self.of(f"blocks.seq_modeling_block.{part}", block)).unflatten(-1, (self.heads, -1))
            for part in ("wq", "wk", "wv")
        )
        if self.wrong != "no norm of queries":
            q = self.norm(q, self.of("blocks.seq_modeling_block.q_norm", block))
        k = self.norm(k, self.of("blocks.seq_modeling_block.k_norm", block))
        if cache is not None:
            k, v = torch.cat((cache[0], k)), torch.cat((cache[1], v))
        if self.wrong == "keys are constants":
            k = k.detach()
        before = len(k) - len(x)
        scores = torch.einsum("thk,shk->hts", self.turned(q, before), self.turned(k, 0)) * self.head_dim**-0.5
        away = torch.arange(before, len(k))[:, None] - torch.arange(len(k))
        weights = scores.masked_fill((away < 0) | (away >= self.window), -torch.inf).softmax(-1)
        o = torch.einsum("hts,shk->thk", weights, v).flatten(1)
        kept = (k[-self.window :].detach(), v[-self.window :].detach())
        return o @ self.of(
            "blocks.seq_modeling_block.wo", block
        ), None if self.wrong == "chunks forget" else kept

    def block(self, h: Tensor, i: int, cache: Any = None, prime: Any = None) -> tuple[Tensor, Any]:
        def behind(x: Tensor, weight: Tensor) -> Tensor:
            return x if self.wrong == "no norm behind" else self.norm(x, weight)

        def learnt(h: Tensor) -> Tensor:
            if prime is None:
                return h
            j = i - (self.layers - self.suffix)
            before, after = (
                self.of(f"prime_storage.{name}", j) for name in ("ffn_prime_norm", "ffn_prime_post_norm")
            )
            return h + behind(self.mlp(self.norm(h, before), *prime), after)

        o, cache = self.attend(self.norm(h, self.of("blocks.seq_norm", i)), i, cache)
        h = h + behind(o, self.of("blocks.seq_post_norm", i))
        is_late = self.wrong == "prime behind the ffn"
        h = h if is_late else learnt(h)
        ffn = [self.of(f"blocks.feed_forward.{part}", i) for part in ("w1", "w3", "w2")]
        h = h + behind(
            self.mlp(self.norm(h, self.of("blocks.ffn_norm", i)), *ffn), self.of("blocks.ffn_post_norm", i)
        )
        return (learnt(h) if is_late else h), cache

    def losses(self, h: Tensor, targets: Tensor) -> Tensor:
        logits = self.norm(h, self.weights[f"{MODEL}ln_f.weight"]) @ self.weights[f"{MODEL}wte.weight"].T
        if self.wrong == "untied scale":
            logits = logits * self.config["hidden_size"] ** -0.5
        return F.cross_entropy(logits, targets, reduction="none")

    def read(self, ids: Tensor, targets: Tensor, learn: bool = True) -> tuple[Tensor, list[Tensor]]:
        """nll [T], and what has been added to the prime weights: of each block w1, w3 and w2."""
        h, chunk = self.weights[f"{MODEL}wte.weight"][ids], self.config["mini_batch_size"]
        for i in range(self.layers - self.suffix):
            h, _ = self.block(h, i)
        prime, caches, nll = self.prime(), [None] * self.suffix, []
        self.norms.clear()
        for start in range(0, len(ids), chunk):
            here = slice(start, start + chunk)
            prime = [tuple(w.detach().requires_grad_() for w in of_block) for of_block in prime]
            given = list(caches)
            losses = self.chunk_losses(h[here], targets[here], prime, caches)
            if learn:
                kept = self.step(losses, prime)
                if self.wrong == "all learn twice":
                    kept = self.step(self.chunk_losses(h[here], targets[here], kept, list(given)), kept)
                if self.wrong == "loss after the step":
                    losses = self.chunk_losses(h[here], targets[here], kept, list(given))
                prime = kept
            nll.append(losses.detach())
        pairs = zip(prime, self.prime(), strict=True)
        return torch.cat(nll), [w.detach() - w0 for of_block in pairs for w, w0 in zip(*of_block)]

    def chunk_losses(self, h: Tensor, targets: Tensor, prime: Any, caches: list[Any]) -> Tensor:
        for j in range(self.suffix):
            if self.wrong == "the last block alone" and j:
                h = h.detach()
            h, caches[j] = self.block(h, self.layers - self.suffix + j, caches[j], prime[j])
        return self.losses(h, targets)

    def step(self, losses: Tensor, prime: Any) -> Any:
        of_step = self.config["inner_optimizer"]
        total = losses.sum() if self.wrong == "sum of the losses" else losses.mean()
        flat = [w for of_block in prime for w in of_block]
        flat_grads = torch.autograd.grad(
            total, flat, retain_graph=True, materialize_grads=True, allow_unused=True
        )
        grads = [flat_grads[3 * j : 3 * j + 3] for j in range(self.suffix)]
        norms = [sum(float(g.square().sum()) for g in of_block) ** 0.5 for of_block in grads]
        norm = sum(n * n for n in norms) ** 0.5
        self.norms.append(norm)
        if self.wrong != "clip by block":
            norms = [0.0 if self.wrong == "no clip" else norm] * self.suffix
        most, lr = of_step["clip_gradient"], of_step["lr"]
        shares = [1.0 if n < most else most / n for n in norms]
        return [
            tuple((w - lr * share * g).detach().requires_grad_() for w, g in zip(of_block, of_grads))
            for of_block, of_grads, share in zip(prime, grads, shares, strict=True)
        ]
