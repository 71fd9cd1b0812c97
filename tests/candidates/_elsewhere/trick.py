"""Linked into symlinked_helper: it breaks a rule, which must be found through the link."""

import torch

torch.set_float32_matmul_precision("medium")


def normalise(x_TD, weight_D, eps):
    return torch.nn.functional.rms_norm(x_TD, x_TD.shape[-1:], weight_D, eps)
