"""Models that listen: audio clips beside prompts, requests of different ages, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fastkernels.engine.llm import LLM, SamplingParams
from fastkernels.engine.loop import language_model
from fastkernels.engine.media import listener
from fastkernels.engine.programs.program import Tokens
from fastkernels.errors import RequestError, UsageError
from tests.helpers import nested

SAMPLES = 16_000
PROMPT = [91, 92, 93, 94]


def clip(seed: int) -> Tensor:
    """Noise of a length of its own, up to a second."""
    generator = torch.Generator().manual_seed(seed)
    length = int(torch.randint(1000, SAMPLES, (), generator=generator))
    return torch.randn(length, generator=generator) * 0.2


def prompt(seed: int) -> dict[str, object]:
    """The first tokens differ in number too."""
    return {"prompt_token_ids": [*PROMPT, *range(seed % 5)], "multi_modal_data": {"audio": clip(seed)}}


def listened(audio: object) -> dict[str, object]:
    return {"prompt_token_ids": PROMPT, "multi_modal_data": {"audio": audio}}


def params(seed: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=3 + 4 * (seed % 6), ignore_eos=True, logprobs=1)


def engine(**options: object) -> LLM:
    return LLM("whisper", size="tiny", device="cpu", **options)  # type: ignore[arg-type]


def answers(llm: LLM, seeds: range) -> list[tuple[list[int], list[float]]]:
    outputs = llm.generate([prompt(seed) for seed in seeds], [params(seed) for seed in seeds])
    return [told(output) for output in outputs]


def told(output) -> tuple[list[int], list[float]]:
    (one,) = output.outputs
    return one.token_ids, [
        position[i].logprob for i, position in zip(one.token_ids, one.logprobs, strict=True)
    ]


@pytest.fixture(scope="module")
def alone() -> list[tuple[list[int], list[float]]]:
    """Each request by itself, in an engine that has just started."""
    llm = engine(max_num_seqs=1)
    found = [answers(llm, range(seed, seed + 1))[0] for seed in range(12)]
    tokens = {tuple(ids[:3]) for ids, _ in found}
    assert len(tokens) > 6, "the answers do not depend on the clips"
    return found


def same(found, wanted) -> None:
    for (ids, logprobs), (wanted_ids, wanted_logprobs) in zip(found, wanted, strict=True):
        assert ids == wanted_ids
        np.testing.assert_allclose(logprobs, wanted_logprobs, atol=2e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_seqs": 3},
        {"max_num_batched_tokens": 3, "max_num_seqs": 5},
        {"num_kv_cache_blocks": 12, "block_size": 4, "max_num_seqs": 6},
    ],
    ids=["together", "few rows", "prompts in chunks", "preempted"],
)
@pytest.mark.usefixtures("nobody_grows")
def test_requests_together_equal_each_alone(options: dict[str, int], alone):
    llm = engine(**options)
    same(answers(llm, range(12)), alone)
    assert (llm.stats()["preemptions"] > 0) == ("num_kv_cache_blocks" in options)
    same(answers(llm, range(12)), alone)  # rows and their states are used again


def test_requests_that_come_later(alone):
    """Each joins while the others are in the middle of their answers."""
    llm = engine(max_num_seqs=4)
    found = {}
    for seed in range(12):
        llm.add_request(prompt(seed), params(seed), request_id=str(seed))
        for _ in range(3):
            found |= {output.request_id: told(output) for output in llm.step()}
    while llm.has_unfinished_requests():
        found |= {output.request_id: told(output) for output in llm.step()}
    same([found[str(seed)] for seed in range(12)], alone)


def test_an_aborted_request_leaves_the_others_alone(alone):
    llm = engine(max_num_seqs=3)
    for seed in range(6):
        llm.add_request(prompt(seed), params(seed), request_id=str(seed))
    found = {output.request_id: told(output) for output in llm.step()}
    for name in ("1", "5"):  # one runs, one has not been encoded or waits
        assert llm.abort(name)
    while llm.has_unfinished_requests():
        found |= {output.request_id: told(output) for output in llm.step()}
    assert found.keys() == {"0", "2", "3", "4"}
    same([found[name] for name in sorted(found)], [alone[int(name)] for name in sorted(found)])


def test_forced_tokens_are_fed(alone):
    """Along its own tokens a model chooses them again; along others it does not."""
    llm = engine()
    forced = [ids for ids, _ in alone]
    prompts = [prompt(seed) for seed in range(12)]
    own = llm.generate(prompts, SamplingParams(temperature=0.0), forced=forced)
    assert [output.outputs[0].token_ids for output in own] == forced
    other = llm.generate(prompts, SamplingParams(temperature=0.0), forced=[ids[::-1] for ids in forced])
    assert [output.outputs[0].token_ids for output in other] != forced


def test_audio_is_padded_with_silence():
    llm = engine()
    short = clip(4)
    long = torch.cat((short, torch.zeros(SAMPLES - len(short))))
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    kinds = [short, long, short.numpy()]
    prompts = [{"prompt_token_ids": PROMPT, "multi_modal_data": {"audio": audio}} for audio in kinds]
    ids = [output.outputs[0].token_ids for output in llm.generate(prompts, greedy)]
    assert ids[0] == ids[1] == ids[2]


def test_arrays_of_any_strides_and_with_their_rate(recwarn):
    llm = engine()
    samples = clip(4).numpy()
    read_only = np.frombuffer(samples.tobytes(), np.float32)
    kinds = [samples, samples[::-1].copy()[::-1], read_only, (samples, 16000), (clip(4), 16_000.0)]
    kinds += [samples.astype(">f4")]  # as files of other machines have it
    kinds += [clip(4).requires_grad_()]
    kinds += [samples[None], clip(4)[None], (clip(4)[None], 16000)]  # [1, N], as torchaudio gives it
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    outputs = llm.generate([listened(audio) for audio in kinds], greedy)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert not recwarn.list


def test_a_refused_clip_leaves_running_requests_alone(alone):
    llm = engine(max_num_seqs=3)
    for seed in range(3):
        llm.add_request(prompt(seed), params(seed), request_id=str(seed))
    llm.step()
    for audio in (torch.zeros(0), torch.zeros(SAMPLES + 1), torch.zeros(2, 9), (torch.zeros(9), 8000)):
        with pytest.raises(RequestError):
            llm.add_request(listened(audio), params(0))
    found = {}
    while llm.has_unfinished_requests():
        found |= {output.request_id: told(output) for output in llm.step()}
    same([found[str(seed)] for seed in range(3)], alone[:3])


def test_a_refused_clip_leaves_others_of_its_call_alone(alone):
    llm = engine(max_num_seqs=3)
    prompts = [prompt(0), listened(torch.zeros(0)), prompt(1), listened((torch.zeros(9), 8000)), PROMPT]
    found = llm.generate(prompts, [params(seed) for seed in (0, 0, 1, 0, 0)], errors="return")
    same([told(found[0]), told(found[2])], alone[:2])
    assert [str(found[place]).partition(":")[0] for place in (1, 3, 4)] == [
        "audio is empty",
        "audio of 8000 samples a second",
        "this model needs audio",
    ]


def test_states_do_not_pile_up(monkeypatch):
    """The encoder waits for rows; a finished request holds no states."""
    monkeypatch.setattr(listener, "MAX_BATCH", 4)
    llm = engine(max_num_seqs=2)
    for seed in range(30):
        llm.add_request(prompt(seed), params(seed))
    most, ledger = 0, llm._scheduler.ledger
    while llm.has_unfinished_requests():
        llm.step()
        most = max(most, len(ledger.waiting))
    assert 0 < most < 2 * listener.MAX_BATCH
    assert llm.stats()["encoder"]["calls"] == 8


def test_a_finished_request_holds_no_states():
    llm = engine(max_num_seqs=2)
    with torch.inference_mode():
        (states_SD,) = llm.model.encode(torch.zeros(1, SAMPLES))
    need = Tokens("lm", PROMPT, params(0), source=states_SD)
    ((finished,),) = llm.engine.run([language_model(need)])
    assert len(finished.output) == 3
    assert finished.source is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (PROMPT, "needs audio"),
        ({"prompt_token_ids": PROMPT}, "needs audio"),
        ({"prompt_token_ids": PROMPT, "multi_modal_data": {"image": clip(0)}}, "multi_modal_data must be"),
        (
            {"prompt_token_ids": PROMPT, "multi_modal_data": {"audio": torch.zeros(SAMPLES + 1)}},
            "16000, 1 s. Cut it",
        ),
        ({"prompt_token_ids": PROMPT, "multi_modal_data": {"audio": torch.zeros(0)}}, "0 samples"),
        ({"prompt_token_ids": PROMPT, "multi_modal_data": {"audio": torch.zeros(2, 9)}}, "one channel"),
        (listened(np.zeros(9, np.int16)), r"int16: the model takes float32 .* Convert it \(.* by 32768\)"),
        (listened(np.zeros(9)), "float64: the model takes float32 between -1 and 1. Convert it$"),
        (listened(np.zeros((9, 2), np.float32)), r"\[9, 2\].* one channel. Average its channels"),
        (listened(np.zeros((9, 1), np.float32)), r"\[9, 1\].* one channel. Flatten it"),
        (listened(np.zeros((2, 2, 9), np.float32)), r"\[2, 2, 9\].* one channel. Give one clip"),
        (listened(torch.tensor(0.5)), r"\[\].* one channel. Give one clip"),
        (listened(nested()), "audio is a nested tensor"),
        (listened(np.array(["a"])), r"float32 tensor or array \[samples\], not <U1 \[1\]"),
        (listened(np.zeros(9, np.longdouble)), r"not float\d+ \[9\]"),
        (listened(torch.zeros(9).to_sparse()), "audio is a sparse_coo tensor"),
        (listened(torch.zeros(9, device="meta")), "audio is a meta tensor"),
        (listened((torch.zeros(9), np.array([16000, 16000]))), "samples a second: the model takes 16000"),
        (listened((16000, torch.zeros(9))), r"the model takes 16000. Give \(samples, rate\)"),
        (listened((torch.zeros(9), None)), r"None samples a second: .* Give \(samples, rate\)"),
        (listened("clip.wav"), "not str"),
        (listened(None), "not NoneType"),
        (listened((torch.zeros(9), 44100)), "44100 samples a second: the model takes 16000. Resample"),
        (listened(torch.tensor([0.1, float("nan")])), "not finite"),
        (listened(torch.tensor([0.1, float("inf")])), "not finite"),
        (listened(torch.tensor([0.1, -1e18])), r"of size 1e\+18: .* between -1 and 1"),
        (listened(torch.tensor([[0.1, 32767.0]])), "of size 3.277e.04: .* divide by 32768"),
        (listened(torch.zeros(1, 0)), "0 samples"),
        (listened(torch.zeros(1, 1, 9)), "one channel"),
    ],
)
def test_what_is_refused(given: object, says: str):
    llm = engine(max_num_seqs=2)
    with pytest.raises(RequestError, match=f"request 1: .*{says}"):
        llm.generate([prompt(0), given], params(0))
    with pytest.raises(RequestError, match=says):
        llm.add_request(given)
    assert not llm.has_unfinished_requests()
    assert len(answers(llm, range(1))[0][0]) == 3


def test_other_models_take_no_audio_and_listeners_share_no_prefixes():
    with pytest.raises(RequestError, match="takes no audio"):
        LLM("llama", size="tiny", device="cpu").generate([prompt(0)])
    with pytest.raises(UsageError, match="prefix"):
        engine(enable_prefix_caching=True)
    with pytest.raises(UsageError, match="positions end at 32"):
        engine(max_model_len=33)
