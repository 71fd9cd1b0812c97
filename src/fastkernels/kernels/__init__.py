"""The operations that tasks are made of, each with a reference and several implementations (see base.py).

One folder for each: `__init__` has the public function with its mathematics, `reference` plain PyTorch,
`triton` our kernel, and one file for each library that has the operation.
"""

from fastkernels.kernels.activation import activation
from fastkernels.kernels.base import Implementation, Kernel, registered, reload_policy, skipped, use
from fastkernels.kernels.decode_attention import decode_attention
from fastkernels.kernels.dense_attention import dense_attention
from fastkernels.kernels.embedding import embedding
from fastkernels.kernels.glu import glu
from fastkernels.kernels.kv_cache import store_kv
from fastkernels.kernels.layer_norm import layer_norm
from fastkernels.kernels.linear import linear
from fastkernels.kernels.prefill_attention import prefill_attention
from fastkernels.kernels.resize_grid import resize_grid
from fastkernels.kernels.rms_norm import add_rms_norm, rms_norm
from fastkernels.kernels.rope import rope, rotary_table
from fastkernels.kernels.sample import sample
from fastkernels.kernels.softmax import softmax

__all__ = [
    "Implementation",
    "Kernel",
    "activation",
    "add_rms_norm",
    "decode_attention",
    "dense_attention",
    "embedding",
    "glu",
    "layer_norm",
    "linear",
    "prefill_attention",
    "registered",
    "reload_policy",
    "resize_grid",
    "rms_norm",
    "rope",
    "rotary_table",
    "sample",
    "skipped",
    "softmax",
    "store_kv",
    "use",
]
