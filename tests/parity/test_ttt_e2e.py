"""Our TTT-E2E against its equations in float64 with torch.autograd (ttt_equations.py), float32 on the CPU,
the tiny model with random weights: with every gradient clipped, and with none."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import pytest
import torch
from fastkernels.baseline.L4.ttt_e2e import TTTE2E
from safetensors.torch import save_file
from torch import Tensor

from fastkernels import Model, registry
from fastkernels.errors import RequestError, UsageError, WeightsError
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import find, load_model
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import destinations, export_weights
from tests.parity.ttt_equations import MODEL, WRONG, Reader

# From the architecture's fact sheet: of a token's loss, and of what is added to the prime weights, relative.
TOLERANCE, LEARNT = 1e-4, 1e-5
CONFIGS = {name: one.config for name, one in registry.architecture("ttt_e2e").configs.items()}
TINY = CONFIGS["tiny"]
STEPS = {
    "clipped": {"optimizer_type": "sgd", "lr": 1.0, "clip_gradient": 1.0},
    "unclipped": {"optimizer_type": "sgd", "lr": 0.3, "clip_gradient": 1000.0},
}
# What a step that is not clipped, or that is, does not show.
UNSEEN = {"clipped": ("sum of the losses",), "unclipped": ("clip by block", "no clip")}
AS_ROWS = "feed_forward_prime.w2.weight"
PARAMETERS = {"125m": 184_363_776, "tiny": 193_984}


@lru_cache
def ours(step: str = "clipped", **changes: int) -> TTTE2E:
    model = TTTE2E({**TINY, "inner_optimizer": STEPS[step], **changes})
    random_weights(model, seed=0)
    return model


@lru_cache
def weights() -> dict[str, Tensor]:
    """A checkpoint's tensors: those of all blocks in one, with inputs as rows."""
    blocks: dict[str, dict[int, Tensor]] = {}
    whole = {}
    for name, tensor in export_weights(ours()):
        stack = next(
            (each for each in (f"{MODEL}h.blocks.", f"{MODEL}h.prime_storage.") if each in name), None
        )
        if stack is None:
            whole[name] = tensor
            continue
        block, _, rest = name.removeprefix(stack).partition(".")
        is_turned = tensor.dim() == 2 and not rest.endswith(AS_ROWS)
        blocks.setdefault(stack + rest, {})[int(block)] = tensor.mT if is_turned else tensor
    stacked = {name: torch.stack([of[i] for i in range(len(of))]) for name, of in blocks.items()}
    return {name: tensor.contiguous() for name, tensor in {**whole, **stacked}.items()}


def equations(step: str = "clipped", wrong: str = "", **changes: int) -> Reader:
    config = {**TINY, "inner_optimizer": STEPS[step], **changes}
    return Reader({name: tensor.double() for name, tensor in weights().items()}, config, wrong)


def text(tokens: int = 64, seed: int = 1) -> Tensor:
    return torch.randint(TINY["vocab_size"], (tokens,), generator=torch.Generator().manual_seed(seed))


def packed(added: list[Tensor]) -> Tensor:
    """[L, 3F, D] of w1, w3 and w2 of each block."""
    blocks = [added[i : i + 3] for i in range(0, len(added), 3)]
    return torch.stack([torch.cat((w1.T, w3.T, w2)) for w1, w3, w2 in blocks])


@lru_cache
def read(step: str = "clipped", learn: bool = True) -> tuple[Tensor, Tensor]:
    """Of the text, by our model."""
    ids = text()
    with torch.inference_mode():
        nll, learnt = ours(step)(ids[None], ids.roll(-1)[None], learn)
    return nll[0].double(), learnt[0].double()


def apart(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """In units of the tolerances."""
    size = float(wanted[1].norm()) or 1.0
    errors = float((found[0] - wanted[0]).abs().max()), float((found[1] - wanted[1]).norm()) / size
    return errors[0] / TOLERANCE, errors[1] / LEARNT


def wanted(step: str, wrong: str = "") -> tuple[Tensor, Tensor]:
    nll, added = equations(step, wrong).read(text(), text().roll(-1))
    return nll, packed(added)


@pytest.mark.parametrize("step", STEPS)
def test_losses_and_what_is_learnt_are_those_of_the_equations(step: str):
    reader = equations(step)
    nll, added = reader.read(text(), text().roll(-1))
    assert all(norm > 1 for norm in reader.norms), "each gradient is clipped, where one may be"
    assert max(apart(read(step), (nll, packed(added)))) <= 1
    assert (nll - read(step, learn=False)[0]).abs().mean() > 0.05, "a step changes the losses"


@pytest.mark.parametrize("wrong", WRONG)
def test_what_implementations_get_wrong_would_show(wrong: str):
    for step in STEPS:
        if wrong not in UNSEEN[step]:
            assert max(apart(read(step), wanted(step, wrong))) > 10, step


def test_without_learning_the_text_is_read_as_by_any_decoder():
    nll, learnt = read(learn=False)
    frozen, _ = equations().read(text(), text().roll(-1), learn=False)
    assert float((nll - frozen).abs().max()) <= TOLERANCE
    assert not learnt.any()
    # All of it as one chunk is the windowed attention of a whole sequence.
    ids = text()[None]
    with torch.inference_mode():
        whole = ours(mini_batch_size=64)(ids, ids.roll(-1), False)[0][0]
    assert float((nll - whole).abs().max()) <= TOLERANCE
    away = (nll - read()[0]).abs()
    assert away[:16].max() <= TOLERANCE < away[16:].mean() / 100, "the first chunk has learnt nothing"


def test_the_gradient_is_a_difference_of_losses():
    """The suffix's gradient against central differences of the equations' loss, some weights of each
    matrix."""
    reader, ids = equations(), text(16)
    prime = reader.prime()
    h = reader.weights[f"{MODEL}wte.weight"][ids]
    for i in range(2):
        h, _ = reader.block(h, i)

    def loss() -> float:
        return float(reader.chunk_losses(h, ids.roll(-1), prime, [None, None]).mean())

    model = TTTE2E({**TINY, "inner_optimizer": {"lr": 1.0, "clip_gradient": 1e6}})
    model.load_state_dict(ours().state_dict())
    with torch.inference_mode():
        step = -model(ids[None], ids.roll(-1)[None])[1][0]
    width = TINY["intermediate_size"]
    for block in range(2):
        for part, at in enumerate([(5, 17), (63, 0), (90, 2)]):
            weight = prime[block][part]
            value, small = float(weight[at]), 1e-4
            ends = []
            for sign in (1, -1):
                weight[at] = value + sign * small
                ends.append(loss())
            weight[at] = value
            row, column = at if part == 2 else at[::-1]
            found = float(step[block, part * width + row, column])
            assert found == pytest.approx((ends[0] - ends[1]) / (2 * small), rel=1e-3, abs=1e-7)


def test_sequences_learn_apart():
    texts = torch.stack([text(48, seed) for seed in (2, 3)])
    targets = texts.roll(-1, 1)
    with torch.inference_mode():
        together = ours()(texts, targets)
        alone = [ours()(texts[i : i + 1], targets[i : i + 1]) for i in range(2)]
    for both, *ones in zip(together, *alone):
        torch.testing.assert_close(both, torch.cat(ones), rtol=0, atol=1e-6)


# ---------------------------------------------------------------- checkpoints


def layout(config: dict[str, Any]) -> dict[str, list[int]]:
    """Tensors of a checkpoint, from the fact sheet."""
    sizes = ("num_hidden_layers", "suffix_len", "hidden_size", "intermediate_size", "vocab_size")
    layers, suffix, hidden, width, vocabulary = (config[key] for key in sizes)
    head, blocks, prime = (
        hidden // config["num_attention_heads"],
        f"{MODEL}h.blocks.",
        f"{MODEL}h.prime_storage.",
    )
    found = {f"{MODEL}wte.weight": [vocabulary, hidden], f"{MODEL}ln_f.weight": [hidden]}
    found |= {
        f"{blocks}seq_modeling_block.{part}.weight": [layers, hidden, hidden]
        for part in ("wq", "wk", "wv", "wo")
    }
    found |= {f"{blocks}seq_modeling_block.{part}_norm.weight": [layers, head] for part in "qk"}
    norms = ("seq_norm", "seq_post_norm", "ffn_norm", "ffn_post_norm")
    found |= {f"{blocks}{norm}.weight": [layers, hidden] for norm in norms}
    found |= {f"{prime}{norm}.weight": [suffix, hidden] for norm in ("ffn_prime_norm", "ffn_prime_post_norm")}
    for name, count in ((f"{blocks}feed_forward.", layers), (f"{prime}feed_forward_prime.", suffix)):
        found |= {f"{name}{part}.weight": [count, hidden, width] for part in ("w1", "w3")}
        found[f"{name}w2.weight"] = [count, width, hidden]
    return found


def test_names_and_shapes_of_a_checkpoint():
    assert {name: list(tensor.shape) for name, tensor in weights().items()} == layout(TINY)


@pytest.mark.parametrize("name", PARAMETERS)
def test_number_of_parameters(name: str):
    with torch.device("meta"):
        model = TTTE2E(CONFIGS[name])
    assert sum(each.numel() for each in model.parameters()) == PARAMETERS[name]
    assert not destinations(model)[1]
    assert model.prime.dtype == torch.float32


def test_a_folder_with_missing_surplus_and_misshapen_tensors(tmp_path):
    given = dict(weights())
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    given[f"{MODEL}step_index"] = torch.zeros(1)
    save_file(given, tmp_path / "model.safetensors")

    def loaded() -> Any:
        return load_model(find(tmp_path), Overlay.over_baseline(), torch.device("cpu"), torch.float32, 0)

    ids = text()[None]
    with torch.inference_mode():
        assert torch.equal(loaded()(ids, ids.roll(-1))[0][0].double(), read()[0])
    del given[f"{MODEL}h.blocks.seq_modeling_block.wo.weight"]
    given[f"{MODEL}h.blocks.ffn_norm.weight"] = torch.ones(5, 64)
    given[f"{MODEL}h.prime_storage.feed_forward_prime.w2.weight"] = torch.zeros(2, 64, 96)
    save_file(given, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError) as caught:
        loaded()
    for named in (
        "blocks.0.seq_modeling_block.wo",
        "unexpected  ",
        "blocks.4.ffn_norm",
        "prime_storage.0.feed_forward_prime.w2",
    ):
        assert named in str(caught.value)


# ---------------------------------------------------------------- the engine


@lru_cache
def served() -> Model:
    return Model("ttt_e2e", config="tiny", device="cpu", seed=0)


def test_requests_are_answered_as_alone():
    asked = [
        {"input_ids": text(tokens, seed), "learn": learn}
        for tokens, seed, learn in ((64, 1, 1), (32, 2, 1), (64, 1, 0))
    ]
    answers = served().run(asked)
    for one, answer in zip(asked, answers):
        ids = one["input_ids"][None]
        with torch.inference_mode():
            nll, learnt = served().model(ids, ids.roll(-1), bool(one["learn"]))
        assert torch.equal(answer["nll"], nll[0])
        assert torch.equal(answer["prime_change"], learnt[0].sum(-1))
    assert answers[0]["prime_change"].shape == (2, 288)
    assert not answers[2]["prime_change"].any()
    (other,) = served().run([{"input_ids": text(), "targets": text().roll(3)}])
    assert (other["nll"] - answers[0]["nll"]).abs().max() > 0.1


BAD = {
    "input_ids has 60 tokens: the model takes multiples of 16": {"input_ids": text(60)},
    "input_ids has 80 tokens": {"input_ids": text(80)},
    "input_ids has 0 tokens": {"input_ids": text(0)},
    r"input_ids must be int64 \[tokens\], not float32": {"input_ids": torch.zeros(16)},
    "input_ids has token 256": {"input_ids": torch.full((16,), 256)},
    "input_ids has token -1": {"input_ids": torch.full((16,), -1)},
    "16 targets for 64 input_ids": {"targets": text(16)},
    "learn must be true or false": {"learn": 2},
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_request_is_refused_and_harms_no_other(message: str):
    good = {"input_ids": text()}
    refused, answer = served().run([{**good, **BAD[message]}, good], errors="return")
    with pytest.raises(RequestError, match=message):
        raise refused
    assert torch.equal(answer["nll"].double(), read()[0])


REFUSED = {
    "num_attention_heads: 5 do not divide": {"num_attention_heads": 5},
    "suffix_len: 5 of num_hidden_layers, 4": {"suffix_len": 5},
    "qk_norm: false is not supported": {"qk_norm": False},
    "inner_optimizer.optimizer_type: 'adamw'": {"inner_optimizer": {"optimizer_type": "adamw"}},
    "inner_optimizer.momentum: 0.9": {"inner_optimizer": {"momentum": 0.9}},
    "mini_batch_size: is missing": {"mini_batch_size": None},
}


@pytest.mark.parametrize("message", REFUSED)
def test_another_model_is_refused_by_its_key(message: str):
    with torch.device("meta"), pytest.raises(UsageError, match=message):
        TTTE2E({**TINY, **REFUSED[message]})
