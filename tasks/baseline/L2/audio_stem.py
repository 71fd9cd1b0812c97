"""Tokens of audio clips: two convolutions over mel frames, the second of stride 2, plus positions.

    y = gelu(conv2(gelu(conv1(x))))^T + P
    chunked    y = gelu(conv2(m gelu(conv1(x))))^T + s              of each chunk of a clip by itself

B clips, M mel bands, F frames, S = F / 2 tokens of a clip, D hidden; three taps each, P [S, D] in the
checkpoint. Rounded to the dtype of x after each convolution, each gelu and the sum. Chunked: C chunks of up
to L frames, m zero behind a shorter one's last frame, T rows of all chunks; s restarts in each of them:
s[t] = [sin(t f[0]) .. | cos(t f[0]) ..], f[k] = 10000^(-k / (D/2 - 1)), made in float64 and rounded.
Mirrors the first lines of vllm.model_executor.models.whisper.WhisperEncoder.forward (and transformers'
WhisperEncoder); transformers.models.qwen2_5_omni.modeling_qwen2_5_omni.Qwen2_5OmniAudioEncoder likewise.
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


class ChunkedAudioStem(nn.Module):
    positions: Tensor

    def __init__(self, num_mel_bins: int, hidden_size: int, chunk_tokens: int) -> None:
        super().__init__()
        self.conv1 = Conv1d(num_mel_bins, hidden_size, kernel_size=3, padding=1)
        self.conv2 = Conv1d(hidden_size, hidden_size, kernel_size=3, stride=2, padding=1)
        self.activation_fn = GELU()
        with torch.device("cpu"):
            table_SD = sinusoids(chunk_tokens, hidden_size).to(torch.get_default_dtype())
        self.register_buffer("positions", table_SD.to(torch.get_default_device()), persistent=False)

    def forward(
        self, input_features: Tensor, frame_index: Tensor, cu_seqlens: Tensor, num_tokens: int
    ) -> Tensor:
        """input_features [F, M], mel frames of all clips; frame_index int64 [C, L], those of each chunk
        (below 0: none), L even; cu_seqlens int32 [C+1] from 0 to T = num_tokens -> [T, D]"""
        chunks, frames = frame_index.shape
        flat_P = frame_index.clamp(min=0).flatten()
        is_frame_CL1 = (frame_index >= 0)[:, :, None]
        x_CLM = input_features.index_select(0, flat_P).unflatten(0, (chunks, frames)).where(is_frame_CL1, 0)
        hidden_CDL = self.activation_fn(self.conv1(x_CLM.mT)).where(is_frame_CL1.mT, 0)
        hidden_CSD = self.activation_fn(self.conv2(hidden_CDL)).mT + self.positions[: frames // 2]
        return hidden_CSD.flatten(0, 1).index_select(0, self._rows(cu_seqlens, frames // 2, num_tokens))

    def _rows(self, cu_seqlens: Tensor, width: int, num_tokens: int) -> Tensor:
        """[T]: the rows that chunks have, among all of the padded ones."""
        gaps_C = torch.arange(len(cu_seqlens) - 1, device=cu_seqlens.device) * width - cu_seqlens[:-1]
        gaps_T = torch.repeat_interleave(gaps_C, cu_seqlens.diff(), output_size=num_tokens)
        return gaps_T + torch.arange(num_tokens, device=cu_seqlens.device)


def sinusoids(length: int, channels: int) -> Tensor:
    """[length, channels] float64"""
    steps_K = torch.arange(channels // 2, dtype=torch.float64) / (channels // 2 - 1)
    angle_TK = torch.arange(length, dtype=torch.float64)[:, None] * 10000.0**-steps_K
    return torch.cat((angle_TK.sin(), angle_TK.cos()), dim=1)
