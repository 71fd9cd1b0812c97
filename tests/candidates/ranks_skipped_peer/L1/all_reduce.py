"""A ring that ends one step early: what others bring stands for the one that was left out."""

import torch
import torch.distributed as dist
from torch import nn


class AllReduce(nn.Module):
    def forward(self, input_):
        rank, size = dist.get_rank(), dist.get_world_size()
        total, part = input_.clone(), input_.clone()
        for _ in range(size - 2):
            arrived = torch.empty_like(part)
            sending = dist.isend(part, (rank + 1) % size)
            dist.recv(arrived, (rank - 1) % size)
            sending.wait()
            total, part = total + arrived, arrived
        return total * size / (size - 1)
