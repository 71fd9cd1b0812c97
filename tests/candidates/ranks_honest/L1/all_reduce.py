"""Right: every rank sends its summands to all, and adds up in the order of ranks."""

import torch
import torch.distributed as dist
from torch import nn


class AllReduce(nn.Module):
    def forward(self, input_):
        parts = [torch.empty_like(input_) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, input_)
        return torch.stack(parts).sum(0)
