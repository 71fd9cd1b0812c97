"""What a module that sends tokens to experts declares, so that a trial can choose where they go.

A router is a matrix product and a choice of the largest results. Where two results are closer than a
rounding, two right implementations choose different experts and give unrelated outputs. The harness of a
trial therefore looks for routers in the module that it judges and draws their inputs and their `gate` such
that the choice is clear (loader/routing.py).
"""

from __future__ import annotations

from torch import Tensor, nn


class Router(nn.Module):
    """A module with a `gate`, whose weight [E, D] gives the logits of E experts, and a `topk` that keeps
    some."""

    gate: nn.Module
    topk: nn.Module

    @property
    def gate_weight(self) -> Tensor:
        weight = self.gate.weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    def num_experts(self) -> int:
        return self.gate_weight.shape[0]

    @property
    def top_k(self) -> int:
        top_k = self.topk.top_k
        assert isinstance(top_k, int)
        return top_k


def routers(module: nn.Module) -> list[tuple[str, Router]]:
    """(qualified name, module) of every router in `module`, in order of registration."""
    return [(name, part) for name, part in module.named_modules() if isinstance(part, Router)]
