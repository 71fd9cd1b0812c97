"""Sends half of the bits."""

import torch
import torch.distributed as dist
from torch import nn


class AllReduce(nn.Module):
    def forward(self, input_):
        total = input_.to(torch.float16)
        dist.all_reduce(total)
        return total.to(input_.dtype)
