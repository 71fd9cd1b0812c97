"""What the routers of a running model get and choose: the first tokens of each phase; every choice counted.

L layers with a router · T tokens of a step, those of decode rows first · E experts · k experts of a token
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.errors import UsageError
from fastkernels.loader.golden import PHASES
from fastkernels.nn.context import step
from fastkernels.nn.routing import Router, routers
from fastkernels.records import CapturedTokens, TokenPhase


@dataclass
class _Kept:
    """One router, one phase."""

    load_E: Tensor
    tokens: CapturedTokens = field(default_factory=lambda: CapturedTokens(seen=0, kept=0, hidden=0))
    parts: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, most: CapturedTokens, values_T: dict[str, Tensor]) -> None:
        """Count all tokens; keep those for which there is room, `most` in all."""
        ids_TK, before = values_T["expert_ids"], self.tokens
        self.load_E += torch.bincount(ids_TK.flatten().long(), minlength=len(self.load_E)).cpu()
        self.tokens = CapturedTokens(
            seen=before.seen + len(ids_TK),
            kept=min(most.kept, before.kept + len(ids_TK)),
            hidden=min(most.hidden, before.hidden + len(ids_TK)),
        )
        for name, value_T in values_T.items():
            room = (
                self.tokens.hidden - before.hidden
                if name == "hidden_states"
                else self.tokens.kept - before.kept
            )
            # A copy: a part of a step's tensor would hold all of it.
            self.parts.setdefault(name, []).append(value_T[:room].cpu().clone())


class RouterWatch:
    """Watches all routers of `model` while `attached`.

    kept, hidden: most tokens of each phase that are kept, and of which hidden states are. UsageError for a
    model without routers, or with several kinds.
    """

    def __init__(self, model: nn.Module, kept: int, hidden: int) -> None:
        found = routers(model)
        kinds = {(router.top_k, *router.gate_weight.shape) for _, router in found}
        if len(kinds) != 1:
            told = ", ".join(
                f"{k} of {experts} experts, width {width}" for k, experts, width in sorted(kinds)
            )
            raise UsageError(f"a capture needs routers of one kind; this model has: {told or 'none'}")
        ((self.top_k, self.experts, _),) = kinds
        self.layers = tuple(name for name, _ in found)
        self._model, self._routers = model, [router for _, router in found]
        self._most = CapturedTokens(seen=0, kept=kept, hidden=min(kept, hidden))
        self._kept = {
            phase: [_Kept(torch.zeros(self.experts, dtype=torch.int64)) for _ in found] for phase in PHASES
        }
        self._step = -1

    @contextmanager
    def attached(self) -> Iterator[None]:
        handles = [self._model.register_forward_pre_hook(self._begin)]
        for layer, router in enumerate(self._routers):
            handles += self._listen(layer, router)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def tokens(self) -> dict[TokenPhase, CapturedTokens]:
        return {phase: self._kept[phase][0].tokens for phase in PHASES}

    def tensors(self) -> dict[str, Tensor]:
        """By name, as a golden folder has them."""
        found = {"gate": torch.stack([router.gate_weight.cpu() for router in self._routers])}
        for phase, layers in self._kept.items():
            assert layers[0].tokens.seen, f"no {phase} token was routed"
            found[f"{phase}.load"] = torch.stack([layer.load_E for layer in layers])
            found[f"{phase}.steps"] = torch.cat(layers[0].parts.pop("steps"))
            for name in layers[0].parts:
                found[f"{phase}.{name}"] = torch.stack([torch.cat(layer.parts[name]) for layer in layers])
        return found

    def _begin(self, module: nn.Module, args: Any) -> None:
        self._step += 1

    def _listen(self, layer: int, router: Router) -> list[Any]:
        """Hooks on the gate, which knows the hidden states, and on the choice, which comes after it."""
        seen: dict[str, Tensor] = {}

        def on_gate(module: nn.Module, args: tuple[Tensor, ...], logits_TE: Tensor) -> None:
            seen.update(hidden_states=args[0], router_logits=logits_TE)

        def on_choice(module: nn.Module, args: Any, result: tuple[Tensor, Tensor]) -> None:
            self._add(layer, {**seen, "expert_ids": result[1].to(torch.int32)})
            seen.clear()

        return [router.gate.register_forward_hook(on_gate), router.topk.register_forward_hook(on_choice)]

    def _add(self, layer: int, values_T: dict[str, Tensor]) -> None:
        decodes = step().num_decodes
        places: dict[TokenPhase, slice] = {"decode": slice(0, decodes), "prefill": slice(decodes, None)}
        for phase, place in places.items():
            part_T = {name: value_T[place] for name, value_T in values_T.items()}
            count = len(part_T["expert_ids"])
            if layer == 0:
                part_T["steps"] = torch.full((count,), self._step, dtype=torch.int32)
            if count:
                self._kept[phase][layer].add(self._most, part_T)
