"""measure/roofline.py: bytes and operations counted by hand for real tasks; floors; implausible times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fastkernels import registry
from fastkernels.kernels.work import visible_keys, visible_pairs
from fastkernels.loader.materialize import build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.measure import ceilings as ceilings_module
from fastkernels.measure.ceilings import Ceilings, ceilings, measure
from fastkernels.measure.roofline import (
    Work,
    floor_s,
    implausible,
    roofline_pct,
    work,
)
from fastkernels.records import Batch, Case, Provenance, Routing, TensorSpec

H, J, K, D = 4, 2, 16, 64
BF16 = 2


def case(
    task: str, init: dict[str, Any], inputs: dict[str, Any], variant: str = "default", **more: Any
) -> Case:
    made_by = Provenance(architecture="llama", config="tiny", phase="mixed")
    return Case(
        id="t",
        task=task,
        variant=variant,
        size="tiny",
        dtype="bfloat16",
        init=init,
        inputs=inputs,
        provenance=made_by,
        **more,
    )


def tensor(*shape: int, dtype: Any = "bfloat16", draw: str = "normal", high: float = 1) -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype, draw=draw, high=high)


def count(*args: Any, **kwargs: Any) -> Work:
    return work(case(*args, **kwargs), Overlay.over_baseline())


def test_norm_reads_and_writes_everything_once():
    found = count("L1/rms_norm", {"hidden_size": D}, {"x": tensor(7, D), "residual": tensor(7, D)})
    assert found.read_bytes == (2 * 7 * D + D) * BF16
    assert found.written_bytes == 2 * 7 * D * BF16
    assert sum(found.flops.values()) == 0


def test_linear():
    found = count("L1/linear", {"input_size": D, "output_size": 96}, {"x": tensor(7, D)})
    assert found.read_bytes == (7 * D + 96 * D) * BF16
    assert found.written_bytes == 7 * 96 * BF16
    assert found.flops == {"bfloat16": 2 * 7 * D * 96}


def test_embedding_reads_only_the_rows_that_ids_name():
    init = {"num_embeddings": 1000, "embedding_dim": D}
    found = count("L1/embedding", init, {"input": tensor(7, dtype="int64", draw="ids", high=1000)})
    assert found.read_bytes == 7 * D * BF16 + 7 * 8
    assert found.written_bytes == 7 * D * BF16
    many = count("L1/embedding", init, {"input": tensor(5000, dtype="int64", draw="ids", high=1000)})
    assert many.read_bytes == 1000 * D * BF16 + 5000 * 8


def test_weights_that_the_call_leaves_alone_are_not_read():
    """A model's forward ends before its head, whose weight would lift the floor above honest times."""
    whole = registry.cases("L4/llama", size="tiny")[0]
    model = build_module(Overlay.over_baseline(), whole, "meta")
    head = sum(p.numel() for name, p in model.named_parameters() if name.startswith("lm_head"))
    layers = sum(p.numel() for name, p in model.named_parameters() if "layers." in name)
    assert head > 0
    found = work(whole, Overlay.over_baseline())
    itemsize = getattr(torch, whole.dtype).itemsize
    assert layers * itemsize < found.read_bytes < (layers + head) * itemsize


def test_experts_without_a_token_are_not_read():
    """Eight experts: one token reaches two of them, eight tokens seven on average, 512 all."""
    for tokens, experts in ((1, 2), (8, 7), (512, 8)):
        found = count(
            "L1/grouped_gemm",
            {"num_experts": 8, "input_size": D, "output_size": 96},
            {
                "A": tensor(tokens, D),
                "sorted_token_ids": tensor(2 * tokens, dtype="int32", draw="routing.order"),
                "starts": tensor(9, dtype="int32", draw="routing.starts"),
                "topk_weights": None,
            },
            routing=Routing(top_k=2, experts=8),
        )
        assert found.read_bytes == (tokens * D + experts * 96 * D) * BF16 + (2 * tokens + 9) * 4
        assert found.written_bytes == 2 * tokens * 96 * BF16
        assert found.flops == {"bfloat16": 2 * 2 * tokens * D * 96}


def test_a_mixture_of_experts_reads_its_router_and_the_experts_it_chose():
    init = {"num_experts": 8, "top_k": 2, "hidden_size": D, "intermediate_size": 96}
    found = count("L2/moe", init, {"hidden_states": tensor(1, D)}, routing=Routing(top_k=2, experts=8))
    assert found.read_bytes == (D + 8 * D + 2 * 3 * 96 * D) * BF16
    assert found.flops == {"bfloat16": 2 * 8 * D + 2 * 2 * 3 * 96 * D}


BATCH = Batch(rows=((2, 1, 40), (1, 5, 25)), block_size=16)
QKV = {"query": tensor(7, H * K), "key": tensor(7, J * K), "value": tensor(7, J * K)}
ATTENTION = {"num_heads": H, "head_size": K, "scale": 0.25, "num_kv_heads": J}


def test_paged_attention_reads_old_entries_and_writes_new_ones():
    found = count("L2/paged_attention", ATTENTION, QKV, batch=BATCH)
    entry = J * K * BF16
    assert found.written_bytes == 7 * H * K * BF16 + 7 * 2 * entry
    assert found.read_bytes == 7 * (H + 2 * J) * K * BF16 + (39 + 39 + 20) * 2 * entry
    pairs = 40 + 40 + sum(range(21, 26))
    assert found.flops["bfloat16"] == 4 * H * K * pairs


def test_window_bounds_what_is_read():
    found = count("L2/paged_attention", {**ATTENTION, "per_layer_sliding_window": 8}, QKV, batch=BATCH)
    entry = J * K * BF16
    assert found.read_bytes == 7 * (H + 2 * J) * K * BF16 + (7 + 7 + 7) * 2 * entry
    assert found.flops["bfloat16"] == 4 * H * K * (8 + 8 + 5 * 8)


def test_a_store_counts_its_tokens_and_not_the_pool():
    pool = tensor(12, 16, J, K, draw="cache")
    found = count(
        "L1/kv_cache", {},
        {"key": tensor(7, J, K), "value": tensor(7, J, K), "key_cache": pool, "value_cache": pool,
         "slot_mapping": tensor(7, dtype="int64", draw="step.slots")},
        batch=BATCH,
    )  # fmt: skip
    assert found.written_bytes == 2 * 7 * J * K * BF16
    assert found.read_bytes == 2 * 7 * J * K * BF16 + 7 * 8


GLA = {"hidden_size": D, "num_heads": H, "key_dim": K, "value_dim": 2 * K, "gate_low_rank_dim": 8}


def test_states_are_read_where_a_request_goes_on_and_written_for_all():
    batch = Batch(rows=((2, 1, 40), (1, 5, 25), (1, 3, 3)))
    found = count("L2/gated_linear_attention", GLA, {"hidden_states": tensor(10, D)}, batch=batch)
    state = H * K * 2 * K * 4
    wide, keys, values = 2 * H * K + 2 * H * 2 * K + 8, H * K, H * 2 * K
    weights = wide * D + 8 * keys + keys + 2 * K + values * D
    assert found.written_bytes == 10 * D * BF16 + 4 * state
    assert found.read_bytes == (10 * D + weights) * BF16 + 3 * state
    products = wide * D + 8 * keys + values * D
    assert found.flops["bfloat16"] == 10 * (2 * products + 4 * H * K * 2 * K)


def test_a_pool_of_states_counts_the_rows_of_the_step():
    found = count(
        "L1/gla", {"scale": 0.25},
        {**{name: tensor(3, H, K) for name in ("q", "k", "gk")}, "v": tensor(3, H, 2 * K),
         "state": tensor(50, H, K, 2 * K, dtype="float32", draw="state"),
         "rows": tensor(3, dtype="int64", draw="step.rows")},
        variant="recurrent", batch=Batch(rows=((3, 1, 40),)),
    )  # fmt: skip
    state = H * K * 2 * K * 4
    assert found.read_bytes == 3 * H * (3 * K + 2 * K) * BF16 + 3 * 8 + 3 * state
    assert found.written_bytes == 3 * H * 2 * K * BF16 + 3 * state
    assert found.flops == {"bfloat16": 3 * 4 * H * K * 2 * K}


MAMBA = {
    "hidden_size": D, "ssm_state_size": 16, "conv_kernel_size": 4, "intermediate_size": 2 * D,
    "time_step_rank": 8, "use_conv_bias": True, "use_bias": False, "use_rms_norm": True,
}  # fmt: skip


def test_a_mixer_reads_and_writes_both_of_its_states():
    batch = Batch(rows=((2, 1, 40), (1, 5, 25), (1, 3, 3)))
    found = count("L2/mamba_mixer", MAMBA, {"hidden_states": tensor(10, D)}, batch=batch)
    inner, low = 2 * D, 8 + 16 + 16
    state = (3 * inner + inner * 16) * 4
    products = 2 * inner * D + low * inner + 8 * inner + inner * D
    vectors = 4 * inner + low + 3 * inner  # taps; norms; biases of convolution and step, and D
    assert found.written_bytes == 10 * D * BF16 + 4 * state
    assert found.read_bytes == (10 * D + products + vectors) * BF16 + inner * 16 * 4 + 3 * state
    assert found.flops == {"bfloat16": 10 * 2 * products}


@pytest.mark.parametrize("variant", ["default", "update"])
def test_pools_of_a_scan_count_the_rows_of_the_step(variant):
    inner, is_update = 2 * D, variant == "update"
    u, delta, bias = ("x", "dt", "dt_bias") if is_update else ("u", "delta", "delta_bias")
    states, rows = ("state", "state_batch_indices") if is_update else ("ssm_states", "cache_indices")
    step = {} if is_update else {
        "query_start_loc": tensor(4, dtype="int32", draw="step.query_starts"), "max_query_len": 1,
    }  # fmt: skip
    found = count(
        "L1/selective_scan", {},
        {**{name: tensor(3, inner) for name in (u, delta, "z")}, "B": tensor(3, 16), "C": tensor(3, 16),
         "A_log": tensor(inner, 16, dtype="float32"), "D": tensor(inner), bias: tensor(inner),
         states: tensor(50, inner, 16, dtype="float32", draw="state"),
         rows: tensor(3, dtype="int64", draw="step.rows"), **step},
        variant=variant, batch=Batch(rows=((3, 1, 40),)),
    )  # fmt: skip
    tokens = 3 * (3 * inner + 32)
    indices = 3 * 8 + (4 * 4 if step else 0)
    assert found.read_bytes == (tokens + 2 * inner) * BF16 + inner * 16 * 4 * (1 + 3) + indices
    assert found.written_bytes == 3 * inner * BF16 + 3 * inner * 16 * 4


def test_dense_attention_counts_pairs_within_a_row_and_pooling_counts_keys():
    batch = Batch(grids=((2, 2, 3), (1, 4, 5)))
    tokens, images = 32, 3

    def spec(rows: int) -> TensorSpec:
        return TensorSpec(shape=(rows, H, K), dtype="bfloat16")

    starts = TensorSpec(shape=(images + 1,), dtype="int32", draw="step.query_starts")
    rest = {"key": spec(tokens), "value": spec(tokens), "cu_seqlens": starts, "max_seqlen": 20}
    for variant, name, rows, pairs in (
        ("default", "query", tokens, 2 * 6**2 + 20**2),
        ("pool", "query", images, tokens),
    ):
        counted = work(
            case("L1/dense_attention", {"scale": 0.25}, {name: spec(rows), **rest}, variant, batch=batch),
            Overlay.over_baseline(),
        )
        assert counted.flops["bfloat16"] == 4 * H * K * pairs
        assert counted.read_bytes == (rows + 2 * tokens) * H * K * BF16 + 4 * (images + 1)
        assert counted.written_bytes == rows * H * K * BF16


@pytest.mark.parametrize("rows", [((2, 5, 5), (1, 9, 9)), ((3, 7, 7),)], ids=["ragged", "equal"])
def test_causal_attention_counts_what_a_query_sees_and_reads_its_bias(rows):
    batch = Batch(rows=rows)
    tokens, longest = batch.num_tokens, max(batch.seq_lens)
    names = ("query", "key", "value")
    inputs = {
        **{name: tensor(tokens, H, K) for name in names},
        "cu_seqlens": tensor(len(batch.seq_lens) + 1, dtype="int32", draw="step.query_starts"),
        "max_seqlen": longest,
        "bias": tensor(H, longest, longest),
    }
    counted = count("L1/dense_attention", {"scale": 1.0, "causal": True}, inputs, batch=batch)
    assert counted.flops["bfloat16"] == 4 * H * K * sum(n * (n + 1) // 2 for n in batch.seq_lens)
    assert counted.read_bytes == (3 * tokens * H * K + H * longest**2) * BF16 + 4 * (len(batch.seq_lens) + 1)


@pytest.mark.parametrize("window", [0, 1, 3, 8, 100])
@pytest.mark.parametrize(("query_len", "seq_len"), [(1, 1), (1, 9), (5, 5), (5, 12), (12, 12)])
def test_visible_pairs_and_keys_against_the_mask(query_len, seq_len, window):
    seen = [
        [key <= p and (not window or key > p - window) for key in range(seq_len)]
        for p in range(seq_len - query_len, seq_len)
    ]
    assert visible_pairs(query_len, seq_len, window) == sum(map(sum, seen))
    assert visible_keys(query_len, seq_len, window) == sum(map(any, zip(*seen)))


# ---------------------------------------------------------------- ceilings


def made(read: float | None = None, measured_here: bool = False, cache: int = 0) -> Ceilings:
    return Ceilings("a device", ((0, 4e12),), read, cache, measured_here, {"bfloat16": 800e12}.get)


def test_floor_is_the_slower_of_memory_and_arithmetic():
    memory = Work(2_000_000, 2_000_000, {"bfloat16": 1000})
    assert floor_s(memory, made()) == pytest.approx(1e-6)
    arithmetic = Work(2_000_000, 2_000_000, {"bfloat16": 8 * 10**9})
    assert floor_s(arithmetic, made()) == pytest.approx(1e-5)
    assert roofline_pct(arithmetic, made(), 2e-5) == pytest.approx(50)


def test_pure_reads_may_pass_the_copy_rate_and_copies_keep_theirs():
    fast = made(read=5e12)
    assert floor_s(Work(5_000_000, 0, {}), fast) == pytest.approx(1e-6)
    assert floor_s(Work(2_000_000, 2_000_000, {}), fast) == pytest.approx(1e-6)


def test_a_sum_over_ranks_receives_one_part_over_the_link():
    found = count("L1/all_reduce", {}, {"input_": tensor(256, 4096)}, ranks=2)
    part = 256 * 4096 * 2
    assert (found.read_bytes, found.written_bytes, found.received_bytes) == (part, part, part)
    linked = replace(made(), link=lambda: 400e9)
    assert floor_s(found, linked) == pytest.approx(part / 400e9)
    assert floor_s(found, made()) == pytest.approx(2 * part / 4e12), "without another GPU"
    assert implausible(found, linked, 5e-6) is None
    assert "2.1 MB from other ranks" in str(implausible(found, linked, 4e-6))


def test_unknown_dtypes_cost_nothing():
    assert floor_s(Work(4_000_000, 0, {"float64": 10**15}), made()) == pytest.approx(1e-6)


def test_implausible_times_are_named():
    work_ = Work(4_000_000, 0, {})
    assert implausible(work_, made(), 0.9e-6) is None, "within the margin of the ceiling"
    assert "needs at least" in implausible(work_, made(), 0.5e-6)
    assert implausible(work_, made(measured_here=True), 0.5e-6) is None
    assert implausible(work_, made(measured_here=True), 0.1e-6)


def test_writes_may_stay_in_the_cache():
    work_ = Work(0, 4_000_000, {})
    assert implausible(work_, made(), 1e-7)
    assert implausible(work_, made(cache=8_000_000), 1e-7) is None


def test_this_cpu_has_ceilings(monkeypatch):
    monkeypatch.setattr(ceilings_module, "_CPU_FOOTPRINTS", (1 << 16, 1 << 20))
    monkeypatch.setattr(ceilings_module, "_CPU_GEMM", 64)
    found = measure("cpu")
    assert found.measured_here
    assert all(rate > 1e7 for _, rate in found.copy)
    assert found.copy_bytes_s(10) == found.copy[0][1]
    assert found.copy_bytes_s(1 << 30) == found.copy[1][1]
    assert found.flops_s("float32") > 1e6
    assert found.flops_s("int64") is None
    assert found.flops_s("bfloat16") >= found.flops_s("float32"), "who converts has the rate of 32 bits"
    ceilings_module._gemm_rate.cache_clear()


def test_a_device_file_is_used(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    ceilings.cache_clear()
    try:
        found = ceilings("cuda")
    finally:
        ceilings.cache_clear()
    assert found.device == "NVIDIA H200"
    assert not found.measured_here
    assert found.flops_s("bfloat16") > 100 * found.flops_s("float64") if found.flops_s("float64") else True
    assert 1e12 < found.copy_bytes_s(1) <= found.read_bytes_s(1)


def test_a_denoising_step_does_the_published_arithmetic():
    """74.4 TFLOP at 1024 x 1024 pixels, 21.5 at 512 x 512; blocks that make their rows themselves have no
    batch."""
    flops: dict[str, int] = {}
    for block in registry.cases("L3/diffusion_block", "full", "flux"):
        assert block.batch is None
        flops[block.id] = work(block, Overlay.over_baseline()).flops["bfloat16"]
    for image, joined, total in (("4096", "4608", 74.4e12), ("1024", "1536", 21.5e12)):
        double, single = (flops[f"{name}x3072-bf16"] for name in (
            f"double-flux-dev-T1-{image}", f"single-flux-dev-T1-{joined}"))  # fmt: skip
        assert 19 * double + 38 * single == pytest.approx(total, rel=5e-3)


def test_a_decoder_does_the_published_arithmetic():
    """10.5 TFLOP from latents to 1024 x 1024 pixels."""
    (decoder,) = registry.cases("L3/vae_decoder", "full", glob="flux-dev-B1-128x128x16-bf16")
    flops = work(decoder, Overlay.over_baseline()).flops["bfloat16"]
    assert flops == pytest.approx(10.5e12, rel=2e-2)
