"""The Triton kernels on CPU: this folder's `triton` tests and the example's, in the interpreter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Two parts that take as long as each other, so that two processors are busy.
PARTS = {
    "attention": [
        "test_kv_cache.py",
        "test_norm_rope_store_kv.py",
        "test_rope_store_kv.py",
        "test_prefill_attention.py",
        "test_decode_attention.py",
        "test_dense_attention.py",
        "test_cross_attention.py",
        "test_moe.py",
        "test_mxfp4.py",
        "test_gla.py",
        "test_mla_attention.py",
        "test_topk_scores.py",
        "test_rwkv7.py",
        "test_linear_float32.py",
        "test_linear_activation.py",
        "test_bitnet_linear.py",
        "test_retrieval.py",
    ],
    "others": [
        "test_mamba.py",
        "test_delta_rule.py",
        "test_linear.py",
        "test_linear_glu.py",
        "test_rms_norm.py",
        "test_norm_branches.py",
        "test_softcap.py",
        "test_layer_norm.py",
        "test_gated_rms_norm.py",
        "test_sigmoid_gate.py",
        "test_glu.py",
        "test_activation.py",
        "test_softmax.py",
        "test_rope.py",
        "test_mrope_table.py",
        "test_resize_grid.py",
        "test_sample_grid.py",
        "test_convolution.py",
        "test_recommendation.py",
        "test_convnext.py",
        "test_window_attention.py",
        "test_sample.py",
        "test_diffusion.py",
        "test_vision.py",
        "test_providers_more.py",
        "../examples/test_triton_example.py",
    ],
}


@pytest.mark.parametrize("part", PARTS)
def test_triton_kernels_in_the_interpreter(part: str, request: pytest.FixtureRequest) -> None:
    is_whole = request.config.getoption("--whole")
    here = Path(__file__).parent
    files = [str(here / name) for name in PARTS[part]]
    command = [sys.executable, "-m", "pytest", "-k", "triton", "-p", "no:cacheprovider", *files]
    command += ["--whole"] if is_whole else []
    done = subprocess.run(
        command,
        cwd=here.parents[2],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) > (250 if is_whole else 60), "the selection has lost its tests"
    assert "skipped" not in done.stdout
