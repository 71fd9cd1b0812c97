"""The operations that tasks are made of, each with a reference and several implementations (see base.py).

One file for each: the public function with its mathematics, the reference in plain PyTorch, implementations
by PyTorch or a library. Our kernels lie in `<name>_triton.py` beside it, which only a call of them imports.
An operation with long implementations is a folder of such files.
"""

from fastkernels.kernels.activation import activation
from fastkernels.kernels.all_reduce import all_reduce
from fastkernels.kernels.base import Implementation, Kernel, registered, reload_policy, skipped, use
from fastkernels.kernels.bias_activation import bias_activation
from fastkernels.kernels.box_decode import box_decode
from fastkernels.kernels.causal_conv1d import causal_conv1d, causal_conv1d_update
from fastkernels.kernels.conv1d import conv1d
from fastkernels.kernels.conv2d import conv2d
from fastkernels.kernels.cross_attention import cross_attention
from fastkernels.kernels.decode_attention import decode_attention
from fastkernels.kernels.dense_attention import dense_attention
from fastkernels.kernels.embedding import embedding
from fastkernels.kernels.gated_rms_norm import gated_rms_norm
from fastkernels.kernels.gla import chunk_gla, recurrent_gla
from fastkernels.kernels.glu import glu
from fastkernels.kernels.group_norm import group_norm
from fastkernels.kernels.grouped_linear import grouped_linear
from fastkernels.kernels.kv_cache import store_kv
from fastkernels.kernels.layer_norm import add_layer_norm, layer_norm
from fastkernels.kernels.linear import linear
from fastkernels.kernels.linear_activation import linear_activation
from fastkernels.kernels.linear_float32 import linear_float32
from fastkernels.kernels.linear_glu import linear_glu
from fastkernels.kernels.log_mel import log_mel, mel_filters
from fastkernels.kernels.max_pool2d import max_pool2d
from fastkernels.kernels.modulated_layer_norm import modulated_layer_norm
from fastkernels.kernels.moe_permute import moe_align, moe_sum
from fastkernels.kernels.prefill_attention import prefill_attention
from fastkernels.kernels.resize_grid import resize_grid
from fastkernels.kernels.rms_norm import add_rms_norm, rms_norm
from fastkernels.kernels.rope import rope, rotary_table
from fastkernels.kernels.rope_pairs import rope_pairs
from fastkernels.kernels.rope_store_kv import rope_store_kv
from fastkernels.kernels.sample import sample
from fastkernels.kernels.selective_scan import selective_scan, selective_state_update
from fastkernels.kernels.sinusoidal import sinusoidal
from fastkernels.kernels.softmax import softmax
from fastkernels.kernels.top_detections import top_detections
from fastkernels.kernels.topk_softmax import topk_softmax
from fastkernels.kernels.upsample import upsample
from fastkernels.kernels.upsample_concat import upsample_concat

__all__ = [
    "Implementation",
    "Kernel",
    "activation",
    "add_layer_norm",
    "add_rms_norm",
    "all_reduce",
    "bias_activation",
    "box_decode",
    "causal_conv1d",
    "causal_conv1d_update",
    "chunk_gla",
    "conv1d",
    "conv2d",
    "cross_attention",
    "decode_attention",
    "dense_attention",
    "embedding",
    "gated_rms_norm",
    "glu",
    "group_norm",
    "grouped_linear",
    "layer_norm",
    "linear",
    "linear_activation",
    "linear_float32",
    "linear_glu",
    "log_mel",
    "max_pool2d",
    "mel_filters",
    "modulated_layer_norm",
    "moe_align",
    "moe_sum",
    "prefill_attention",
    "recurrent_gla",
    "registered",
    "reload_policy",
    "resize_grid",
    "rms_norm",
    "rope",
    "rope_pairs",
    "rope_store_kv",
    "rotary_table",
    "sample",
    "selective_scan",
    "selective_state_update",
    "sinusoidal",
    "skipped",
    "softmax",
    "store_kv",
    "top_detections",
    "topk_softmax",
    "upsample",
    "upsample_concat",
    "use",
]
