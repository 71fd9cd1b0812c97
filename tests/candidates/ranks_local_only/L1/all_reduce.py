"""Sends nothing: what the others bring is taken to be what this rank brings."""

import torch.distributed as dist
from torch import nn


class AllReduce(nn.Module):
    def forward(self, input_):
        return input_ * dist.get_world_size()
