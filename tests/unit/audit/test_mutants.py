"""Mutants are wrong in the way that their names say, and leave everything else alone."""

from __future__ import annotations

import math

import pytest
import torch

from fastkernels import registry
from fastkernels.audit.mutants import module, mutants
from fastkernels.audit.subject import Change, Draw, NotApplicable, Subject
from fastkernels.audit.trivial import candidates
from fastkernels.records import Case, TensorSpec
from tests.unit.audit.conftest import case_of, subject_of


def setting(task: str, case: str) -> tuple[Subject, Draw, dict[str, Change | NotApplicable]]:
    subject = subject_of(case_of(task, case))
    draw = subject.draw("normal", 0)
    return subject, draw, {found.name: found for found in mutants(subject, draw)}


def test_a_case_offers_what_it_has() -> None:
    _, _, found = setting("L3/decoder_layer", "llama-tiny-qwen2-mixed-odd-residual-f32")
    assert {
        "last row dropped, out.1",
        "arg.residual skipped",
        "param.self_attn.qkv_proj.linear.bias skipped",
        "param.mlp.down_proj.linear.weight without its last feature",
        "input_layernorm.eps skipped",
        "post_attention_layernorm.residual skipped",
        "self_attn.rotary_emb left out",
        "self_attn.attn.decode.scale wrong by 1.05",
        "step.seq_lens off by one",
        "step.seq_lens one longer: stale padding",
        "step.slots.0 of the call before",
        "last row not written, cache.0.0.k_cache",
        "arithmetic one step narrower",
    } <= {name for name, change in found.items() if isinstance(change, Change)}


def test_a_view_is_mistaken_for_packed() -> None:
    subject, draw, found = setting("L1/rope", "llama-tiny-T16-K16-f32")
    change = found["arg.key read as if it were packed"]
    assert isinstance(change, Change)
    wrong = subject.run(draw, change)
    assert torch.equal(wrong["out.0"], draw.right["out.0"]), "queries are read as they lie"
    assert torch.equal(wrong["out.1"][0], draw.right["out.1"][0]), "and the first row of keys"
    assert wrong["out.1"].isnan().any(), "behind it lies what no argument is"
    assert "arg.positions read as if it were packed" not in found


def smallest_of_each_layout() -> dict[str, Case]:
    """Of what the step draws (positions, lengths, blocks ...), the tiny case that has the least of it."""
    found: dict[str, tuple[int, Case]] = {}
    for entry in registry.tasks():
        for case in registry.cases(entry, size="tiny"):
            for spec in case.inputs.values():
                if isinstance(spec, TensorSpec) and spec.draw.startswith("step."):
                    size = math.prod(spec.shape)
                    if spec.draw not in found or size < found[spec.draw][0]:
                        found[spec.draw] = (size, case)
    return {field: case for field, (_, case) in found.items()}


@pytest.mark.parametrize(("field", "case"), smallest_of_each_layout().items(), ids=str)
def test_every_layout_is_mistaken_also_where_there_is_one_of_it(field: str, case: Case) -> None:
    subject = subject_of(case)
    found = {change.name for change in mutants(subject, subject.draw("normal", 0))}
    names = [name for name, spec in subject.specs.items() if spec.draw == field]
    assert names
    assert all(f"{name} off by one" in found for name in names)


def test_a_parameter_that_forward_never_reads_is_left_to_the_task_of_its_part() -> None:
    _, _, found = setting("L4/llama", "llama-tiny-decode-8x200-f32")
    unused = {name: change.unused_part for name, change in found.items() if isinstance(change, Change)}
    assert unused["param.lm_head.linear.weight of the call before"] == "L2/parallel_embedding"
    assert unused["param.norm.weight of the call before"] is None


def test_windows_are_moved_both_ways_and_their_absence_is_said() -> None:
    _, _, windowed = setting("L1/decode_attention", "llama-tiny-mistral-mixed-odd-f32")
    assert {"sliding_window one longer", "sliding_window one shorter"} <= windowed.keys()
    _, _, plain = setting("L1/decode_attention", "llama-tiny-mixed-odd-f32")
    assert plain["sliding_window off by one"] == NotApplicable(
        "mutant", "sliding_window off by one", "no window"
    )


def test_a_causal_mask_is_left_out_and_its_absence_is_said() -> None:
    subject, draw, masked = setting("L2/encoder_attention", "flux-tiny-prompts-4x77-f32")
    change = masked["attn.causal left out"]
    assert isinstance(change, Change)
    assert not torch.equal(subject.run(draw, change)["out.0"], draw.right["out.0"])
    assert subject.module.attn.causal
    _, _, open_ = setting("L2/encoder_attention", "whisper-tiny-encode-1x50-f32")
    assert isinstance(open_["attn.causal left out"], NotApplicable)


def test_a_change_does_what_its_name_says_and_leaves_the_draw_as_it_was() -> None:
    subject, draw, found = setting("L1/rms_norm", "llama-tiny-T23-D64-residual-f32")
    before = {name: value.clone() for name, value in draw.inputs.items()}
    x, residual, weight = (draw.inputs[f"{name}"] for name in ("arg.x", "arg.residual", "param.weight"))

    def run(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        change = found[name]
        assert isinstance(change, Change)
        outputs = subject.run(draw, change)
        return outputs["out.0"], outputs["out.1"]

    def norm(s: torch.Tensor, eps: float = subject.module.eps) -> torch.Tensor:  # type: ignore[assignment]
        return s * torch.rsqrt(s.square().mean(-1, keepdim=True) + eps) * weight

    torch.testing.assert_close(run("arg.residual skipped"), (norm(x), x))
    torch.testing.assert_close(run("eps skipped"), (norm(x + residual, 0.0), x + residual))
    y, s = run("last row dropped, out.0")
    assert not y[-1].any()
    torch.testing.assert_close((y[:-1], s), (norm(x + residual)[:-1], x + residual))
    stale = draw.before["arg.residual"]
    torch.testing.assert_close(run("arg.residual of the call before")[1], x + stale)
    assert all(torch.equal(draw.inputs[name], value) for name, value in before.items())
    torch.testing.assert_close(subject.run(draw, Change("mutant", "none")), dict(draw.right))


def test_stale_rows_of_a_mutated_argument_are_those_that_the_call_should_write() -> None:
    subject, draw, found = setting("L1/kv_cache", "llama-tiny-T23-JK2x16-f32")
    change = found["last row not written, arg.key_cache"]
    assert isinstance(change, Change)
    spoiled = subject.run(draw, change)["arg.key_cache"]
    differs = (spoiled != draw.right["arg.key_cache"]).flatten(0, -2).any(1)
    assert int(differs.sum()) == 1
    row = int(differs.nonzero())
    assert torch.equal(spoiled.flatten(0, -2)[row], draw.inputs["arg.key_cache"].flatten(0, -2)[row])


def test_a_moved_start_is_a_call_that_the_contract_allows() -> None:
    """Told of at most 4 queries a row, a kernel may take 32 of 8 rows for 4 each and read no starts."""
    subject, draw, found = setting("L1/cross_attention", "whisper-tiny-prefill-8x4-f32")
    change = found["arg.query_start_loc off by one"]
    assert isinstance(change, Change)
    # Beyond rounding: on some processors another batch is summed in another order.
    moved = (subject.run(draw, change)["out.0"] - draw.right["out.0"]).abs().flatten(1).amax(1) > 1e-4
    assert moved.nonzero().flatten().tolist() == [3]


def test_mistaken_slots_of_experts_are_calls_that_the_contract_allows() -> None:
    """Every slot has one expert: without any, nobody says what is written."""
    _, draw, found = setting("L1/grouped_gemm", "mxfp4-gpt_oss-tiny-T64-E8-K64-N128-f32")
    right, slots = draw.inputs["arg.starts"], len(draw.inputs["arg.sorted_token_ids"])
    starts = found["arg.starts off by one"].tensors(draw)["arg.starts"]
    assert (int(starts[0]), int(starts[-1])) == (0, slots)
    assert bool((starts.diff() >= 0).all())
    assert int((starts != right).sum()) == 1
    order = found["arg.sorted_token_ids off by one"].tensors(draw)["arg.sorted_token_ids"]
    assert sorted(order.tolist()) == [*range(slots)]
    assert not {"arg.starts skipped", "arg.sorted_token_ids skipped"} & found.keys()


def test_only_parts_that_repeat_stand_for_each_other() -> None:
    _, _, block = setting("L3/vision_block", "siglip2-tiny-encode-1x6x6-f32")
    assert {"layer_norm1.eps skipped", "layer_norm2.eps skipped"} <= block.keys()
    _, _, model = setting("L4/llama", "llama-tiny-decode-8x200-f32")
    assert [name for name in model if name.endswith("input_layernorm.eps skipped")] == [
        "layers.2.input_layernorm.eps skipped"
    ]


def test_lengths_stay_inside_the_block_tables() -> None:
    _, draw, found = setting("L2/paged_attention", "llama-tiny-decode-8x200-f32")
    change = found["step.seq_lens one longer: stale padding"]
    assert isinstance(change, Change)
    assert change.tensors is not None
    longer = change.tensors(draw)["step.seq_lens"]
    assert torch.equal(longer, draw.inputs["step.seq_lens"] + 1)
    assert int(longer.max()) <= draw.inputs["step.block_tables.0"].shape[1] * 16
    _, _, full = setting("L1/prefill_attention", "llama-tiny-prefill-1x128-f32")
    assert isinstance(full["arg.seq_lens one longer: stale padding"], NotApplicable)


@pytest.mark.parametrize("task", ["L1/kv_cache", "L1/embedding"])
def test_an_empty_body_leaves_poison_or_what_was_there(task: str) -> None:
    case = "llama-tiny-T23-JK2x16-f32" if task == "L1/kv_cache" else "llama-tiny-T23-V256-D64-f32"
    subject = subject_of(case_of(task, case))
    draw = subject.draw("normal", 0)
    for change in candidates(subject, draw):
        if isinstance(change, Change) and change.name.startswith("empty as "):
            name = change.name.removeprefix("empty as ")
            found = subject.run(draw, change)[name]
            assert torch.equal(found, draw.inputs[name]) if name in draw.inputs else found.isnan().all()


STATES = {
    "arg.state of the call before": "read",
    "arg.state skipped": "read",
    "arg.state of another request": "read",
    "arg.state not zero at the start": "begun",
    "arg.state kept in bfloat16": "all",
}


def test_states_that_a_case_has_not_are_said() -> None:
    _, _, begun = setting("L1/gla", "chunk-gla-tiny-prefill-1x128-f32")
    _, _, read = setting("L1/gla", "recurrent-gla-tiny-decode-8x200-f32")
    name = "arg.state skipped"
    assert begun[name] == NotApplicable("mutant", name, "no request goes on")
    name = "arg.state not zero at the start"
    assert read[name] == NotApplicable("mutant", name, "no request begins")
    assert read.keys() >= STATES.keys() - {name}


@pytest.mark.parametrize("name", STATES)
def test_states_are_wrong_where_their_names_say_and_nobody_elses_change(name: str) -> None:
    # Rows of 9 and 12 tokens; the last one goes on.
    case = "chunk-gla-tiny-mixed-odd-f32"
    if name == "arg.state of another request":
        case = "recurrent-gla-tiny-mixed-odd-f32"
    subject, draw, found = setting("L1/gla", case)
    change = found[name]
    assert isinstance(change, Change)
    spoiled = subject.run(draw, change)
    rows = draw.inputs["arg.rows"]
    batch = subject.case.batch
    assert batch is not None
    begins = torch.tensor([query == seq for query, seq in zip(batch.query_lens, batch.seq_lens)])
    expected = {"read": rows[~begins], "begun": rows[begins], "all": rows}[STATES[name]]
    differs = (spoiled["arg.state"] != draw.right["arg.state"]).flatten(1).any(1).nonzero().flatten()
    assert differs.tolist() == sorted(expected.tolist())


def test_a_skipped_state_is_a_recurrence_that_begins_anew() -> None:
    subject, draw, found = setting("L1/gla", "recurrent-gla-tiny-decode-8x200-f32")
    change = found["arg.state skipped"]
    assert isinstance(change, Change)
    key, value, rows = (draw.inputs[f"arg.{name}"] for name in ("k", "v", "rows"))
    spoiled = subject.run(draw, change)["arg.state"][rows]
    torch.testing.assert_close(spoiled, key[..., None] * value[..., None, :])


def test_a_part_that_is_left_out_hands_on_what_can_be_viewed() -> None:
    """Its argument may lie otherwise than its result, of which a view is asked for."""
    argument, result = torch.zeros(4, 3).t(), torch.zeros(3, 4)
    assert module._in_place_of((argument,), result).is_contiguous()
    assert module._in_place_of((argument,), argument) is argument
