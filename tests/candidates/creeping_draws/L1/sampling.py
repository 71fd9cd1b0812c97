"""Draws by a number that goes on by the golden section from one position to the next: even over any text, and known
from the token before."""

import torch
from torch import nn

STEP = 0.6180339887498949


class Sampler(nn.Module):
    def forward(self, logits, temperature, top_k, top_p, seeds, positions):
        scaled_BV = logits / temperature.clamp_min(1e-6)[:, None]
        mass_BV = scaled_BV.softmax(1).cumsum(1)
        start_B = torch.sin(seeds.double() % 9973 * 12.9898) * 43758.5453
        u_B = ((start_B + positions.double() * STEP) % 1).float() * mass_BV[:, -1]
        ids_B = torch.searchsorted(mass_BV, u_B[:, None]).squeeze(1).clamp_max(logits.shape[1] - 1)
        return torch.where(temperature > 0, ids_B, logits.argmax(1))
