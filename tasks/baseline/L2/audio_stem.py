"""Tokens of audio clips: two convolutions over mel frames, the second of stride 2, plus positions.

    y = gelu(conv2(gelu(conv1(x))))^T + P

B clips, M mel bands, F frames, S = F / 2 tokens of a clip, D hidden; three taps each, P [S, D] in the
checkpoint. Rounded to the dtype of x after each convolution, each gelu and the sum.
Mirrors the first lines of vllm.model_executor.models.whisper.WhisperEncoder.forward (and transformers'
WhisperEncoder).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..L1.activation import GELU
from ..L1.conv1d import Conv1d


class AudioStem(nn.Module):
    def __init__(self, num_mel_bins: int, hidden_size: int, max_source_positions: int) -> None:
        super().__init__()
        self.conv1 = Conv1d(num_mel_bins, hidden_size, kernel_size=3, padding=1)
        self.conv2 = Conv1d(hidden_size, hidden_size, kernel_size=3, stride=2, padding=1)
        self.activation_fn = GELU()
        self.embed_positions = nn.Parameter(
            torch.empty(max_source_positions, hidden_size), requires_grad=False
        )

    def forward(self, input_features: Tensor) -> Tensor:
        """[B, M, 2S] -> [B*S, D]"""
        hidden_BDF = self.activation_fn(self.conv1(input_features))
        hidden_BDS = self.activation_fn(self.conv2(hidden_BDF))
        return (hidden_BDS.transpose(1, 2) + self.embed_positions).flatten(0, 1)
