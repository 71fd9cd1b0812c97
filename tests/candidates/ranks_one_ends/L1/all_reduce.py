"""Rank 1 ends its process, with the status of success, while the others wait for it."""

import os

import torch.distributed as dist
from torch import nn


class AllReduce(nn.Module):
    def forward(self, input_):
        if dist.get_rank() == 1:
            os._exit(0)
        total = input_.clone()
        dist.all_reduce(total)
        return total
