"""The captured hidden states through the router's kernels of this machine: do the tokens choose alike?

    hidden states, gate -> logits -> expert ids

Counted are (token, layer) pairs with the same set of experts. Near ties turn over with another rounding, so a
share just below 1 is no defect; it says how much of a difference between two engines is routing.
"""

from __future__ import annotations

import torch

from fastkernels import kernels
from fastkernels.loader.golden import PHASES, GoldenValues


@torch.inference_mode()
def same_choice(values: GoldenValues, device: str) -> tuple[int, int]:
    """(pairs with the same set of experts, all pairs)."""
    same = total = 0
    for phase in PHASES:
        hidden_LMD = values.of(phase, "hidden_states").to(device)
        ids_LMK = values.of(phase, "expert_ids")[:, : hidden_LMD.shape[1]].to(device)
        for hidden_MD, gate_ED, ids_MK in zip(hidden_LMD, values.tensors["gate"].to(device), ids_LMK):
            logits_ME = kernels.linear(hidden_MD, gate_ED)
            _, again_MK = kernels.topk_softmax(logits_ME, ids_MK.shape[1], True)
            same += int((again_MK.sort(-1).values == ids_MK.sort(-1).values).all(-1).sum())
            total += len(ids_MK)
    return same, total
