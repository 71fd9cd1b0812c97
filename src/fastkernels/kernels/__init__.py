"""The operations that tasks are made of, each with a reference and several implementations (see base.py).

One file for each: the public function with its mathematics, the reference in plain PyTorch, implementations
by PyTorch or a library. Our kernels lie in `<name>_triton.py` beside it, which only a call of them imports.
An operation with long implementations is a folder of such files.
"""

from fastkernels.kernels.activation import activation as activation
from fastkernels.kernels.all_reduce import all_reduce as all_reduce
from fastkernels.kernels.base import Implementation as Implementation
from fastkernels.kernels.base import Kernel as Kernel
from fastkernels.kernels.base import registered as registered
from fastkernels.kernels.base import reload_policy as reload_policy
from fastkernels.kernels.base import skipped as skipped
from fastkernels.kernels.base import use as use
from fastkernels.kernels.bias_activation import bias_activation as bias_activation
from fastkernels.kernels.box_decode import box_decode as box_decode
from fastkernels.kernels.causal_conv1d import causal_conv1d as causal_conv1d
from fastkernels.kernels.causal_conv1d import causal_conv1d_update as causal_conv1d_update
from fastkernels.kernels.conv1d import conv1d as conv1d
from fastkernels.kernels.conv2d import conv2d as conv2d
from fastkernels.kernels.conv2d_activation import conv2d_activation as conv2d_activation
from fastkernels.kernels.conv2d_activation import conv2d_activation_mean as conv2d_activation_mean
from fastkernels.kernels.cross_attention import cross_attention as cross_attention
from fastkernels.kernels.decode_attention import decode_attention as decode_attention
from fastkernels.kernels.dense_attention import dense_attention as dense_attention
from fastkernels.kernels.depthwise_norm import depthwise_norm as depthwise_norm
from fastkernels.kernels.dot_interaction import dot_interaction as dot_interaction
from fastkernels.kernels.embedding import embedding as embedding
from fastkernels.kernels.embedding_bag import embedding_bag as embedding_bag
from fastkernels.kernels.gated_rms_norm import gated_rms_norm as gated_rms_norm
from fastkernels.kernels.gla import chunk_gla as chunk_gla
from fastkernels.kernels.gla import recurrent_gla as recurrent_gla
from fastkernels.kernels.glu import glu as glu
from fastkernels.kernels.group_norm import group_norm as group_norm
from fastkernels.kernels.grouped_linear import grouped_linear as grouped_linear
from fastkernels.kernels.kv_cache import store_kv as store_kv
from fastkernels.kernels.l2_norm import l2_norm as l2_norm
from fastkernels.kernels.late_interaction import late_interaction as late_interaction
from fastkernels.kernels.layer_norm import add_layer_norm as add_layer_norm
from fastkernels.kernels.layer_norm import layer_norm as layer_norm
from fastkernels.kernels.layer_norm_add import layer_norm_add as layer_norm_add
from fastkernels.kernels.linear import linear as linear
from fastkernels.kernels.linear_activation import linear_activation as linear_activation
from fastkernels.kernels.linear_float32 import linear_float32 as linear_float32
from fastkernels.kernels.linear_glu import linear_glu as linear_glu
from fastkernels.kernels.log_mel import log_mel as log_mel
from fastkernels.kernels.log_mel import mel_filters as mel_filters
from fastkernels.kernels.max_pool2d import max_pool2d as max_pool2d
from fastkernels.kernels.mean_pool import mean_pool as mean_pool
from fastkernels.kernels.modulated_layer_norm import modulated_layer_norm as modulated_layer_norm
from fastkernels.kernels.moe_permute import moe_align as moe_align
from fastkernels.kernels.moe_permute import moe_sum as moe_sum
from fastkernels.kernels.prefill_attention import prefill_attention as prefill_attention
from fastkernels.kernels.resize_grid import resize_grid as resize_grid
from fastkernels.kernels.response_norm import response_norm as response_norm
from fastkernels.kernels.rms_norm import add_rms_norm as add_rms_norm
from fastkernels.kernels.rms_norm import rms_norm as rms_norm
from fastkernels.kernels.rope import rope as rope
from fastkernels.kernels.rope import rotary_table as rotary_table
from fastkernels.kernels.rope_by_feature import rope_by_feature as rope_by_feature
from fastkernels.kernels.rope_pairs import rope_pairs as rope_pairs
from fastkernels.kernels.rope_store_kv import rope_store_kv as rope_store_kv
from fastkernels.kernels.sample import sample as sample
from fastkernels.kernels.scaled_add import scaled_add as scaled_add
from fastkernels.kernels.selective_scan import selective_scan as selective_scan
from fastkernels.kernels.selective_scan import selective_state_update as selective_state_update
from fastkernels.kernels.sinusoidal import sinusoidal as sinusoidal
from fastkernels.kernels.softmax import softmax as softmax
from fastkernels.kernels.squeeze_excite import squeeze_excite as squeeze_excite
from fastkernels.kernels.ssd_scan import ssd_scan as ssd_scan
from fastkernels.kernels.ssd_scan import ssd_state_update as ssd_state_update
from fastkernels.kernels.summed_embedding import summed_embedding as summed_embedding
from fastkernels.kernels.top_detections import top_detections as top_detections
from fastkernels.kernels.topk_softmax import topk_softmax as topk_softmax
from fastkernels.kernels.upsample import upsample as upsample
from fastkernels.kernels.upsample_concat import upsample_concat as upsample_concat
from fastkernels.kernels.window_attention import window_attention as window_attention
