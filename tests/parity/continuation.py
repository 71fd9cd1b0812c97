"""What a language model of transformers says behind a prompt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.inference_mode()
def continuation(model: Any, ids_T: Tensor, new_tokens: int) -> list[int]:
    """Its greedy ids, as many as asked for: no id ends it."""
    ids_1T = ids_T[None]
    fixed = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    out = model.generate(ids_1T, attention_mask=torch.ones_like(ids_1T), max_new_tokens=new_tokens, **fixed)
    return out[0, len(ids_T) :].tolist()
