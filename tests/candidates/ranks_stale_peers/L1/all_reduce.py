"""Does not wait: takes what the others sent with the call before, as it lies in a buffer that is kept."""

import torch
import torch.distributed as dist
from torch import nn


class AllReduce(nn.Module):
    received = None

    def forward(self, input_):
        if self.received is None:
            self.received = [torch.empty_like(input_) for _ in range(dist.get_world_size())]
            dist.all_gather(self.received, input_)
        else:
            self.sending.wait()
        self.received[dist.get_rank()] = input_
        total = torch.stack(self.received).sum(0)
        self.sending = dist.all_gather(self.received, input_.clone(), async_op=True)
        return total
