"""Right on every rank, but each adds up from its own place on: the last bits differ."""

import torch
import torch.distributed as dist
from torch import nn


class AllReduce(nn.Module):
    def forward(self, input_):
        rank, size = dist.get_rank(), dist.get_world_size()
        parts = [torch.empty_like(input_) for _ in range(size)]
        dist.all_gather(parts, input_)
        total = parts[rank].clone()
        for place in range(1, size):
            total += parts[(rank + place) % size]
        return total
