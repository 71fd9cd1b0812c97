"""judge/sampler.py: determined rows, forbidden ids, and wrong distributions are found; right samplers
pass."""

import pytest
import torch
from torch import Tensor

from fastkernels.judge import sampler
from fastkernels.judge.sampler import Question, SamplerJudge, allowed, uniformity

B, V, CALLS = 64, 50, 40


def full(value: float) -> Tensor:
    return torch.full((B,), value)


def draw(
    logits_BV: Tensor, temperature: float, generator: torch.Generator, top_k: int = 0, top_p: float = 1.0
) -> Tensor:
    """An independent sampler: inverse transform over an explicitly cut and sorted list."""
    ids = []
    for logits in logits_BV / temperature:
        order = logits.argsort(descending=True)[: top_k or V]
        p = logits[order].softmax(0)
        count = int((p.cumsum(0) - p < top_p).sum())
        p = p[:count] / p[:count].sum()
        ids.append(order[int((torch.rand((), generator=generator) > p.cumsum(0)[:-1]).sum())])
    return torch.stack(ids)


def run(sample, temperature=0.8, top_k=0, top_p=1.0) -> str:
    """The label after CALLS calls of `sample(logits, generator)`."""
    generator = torch.Generator().manual_seed(5)
    judge = SamplerJudge(seed=9)
    for _ in range(CALLS):
        logits = 2 * torch.randn(B, V, generator=generator)
        ids = sample(logits, generator)
        verdict = judge.check(ids, Question(logits, full(temperature), torch.full((B,), top_k), full(top_p)))
        if verdict:
            return verdict.label
    assert judge.draws == B * CALLS
    return judge.verdict().verdict.label


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.5, 0, 1.0), (0.8, 5, 1.0), (0.8, 0, 0.7), (1.3, 20, 0.9)],
)
def test_a_right_sampler_passes(temperature, top_k, top_p):
    assert run(lambda z, g: draw(z, temperature, g, top_k, top_p), temperature, top_k, top_p) == "PASSED"


def test_wrong_distributions_fail():
    wrong = {
        "greedy": lambda z, g: z.argmax(1),
        "uniform": lambda z, g: torch.randint(0, V, (B,), generator=g),
        "temperature ignored": lambda z, g: draw(z, 1.0, g),
        "first half of the vocabulary": lambda z, g: draw(z[:, : V // 2], 0.8, g),
        "constant": lambda z, g: torch.zeros(B, dtype=torch.int64),
        "least likely": lambda z, g: z.argmin(1),
    }
    labels = {name: run(sample) for name, sample in wrong.items()}
    assert labels == dict.fromkeys(wrong, "WRONG(value)")


def test_ids_beyond_the_cuts_fail_at_once():
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(B, V, generator=generator)
    second = logits.argsort(1, descending=True)[:, 1]
    judge = SamplerJudge(seed=1)
    assert judge.check(second, Question(logits, full(1.0), torch.full((B,), 1), None)).label == "WRONG(value)"
    assert judge.check(second, Question(logits, full(1.0), torch.full((B,), 2), None)) is None
    assert judge.check(second, Question(logits, full(1.0), None, full(1e-6))).label == "WRONG(value)"
    assert judge.check(logits.argmax(1), Question(logits, full(1.0), None, full(1e-6))) is None


@pytest.mark.parametrize("bad", [-1, V])
def test_ids_outside_the_vocabulary_fail(bad):
    logits = torch.randn(B, V)
    verdict = SamplerJudge(seed=1).check(torch.full((B,), bad), Question(logits, full(1.0)))
    assert "outside the vocabulary" in verdict.failure.message


def test_temperature_zero_is_the_largest_logit_with_ties():
    logits = torch.randn(B, V, generator=torch.Generator().manual_seed(7))
    judge = SamplerJudge(seed=1)
    best = logits.argmax(1)
    assert judge.check(best, Question(logits, full(0.0))) is None
    assert judge.check((best + 1) % V, Question(logits, full(0.0))).label == "WRONG(value)"
    logits[:, 3] = logits.amax(1)
    assert judge.check(torch.full((B,), 3), Question(logits, full(0.0))) is None
    assert judge.draws == 0


def test_rows_of_both_kinds_in_one_batch():
    generator = torch.Generator().manual_seed(8)
    logits = torch.randn(B, V, generator=generator)
    temperature = full(0.7)
    temperature[::2] = 0
    ids = draw(logits, 0.7, generator)
    ids[::2] = logits.argmax(1)[::2]
    judge = SamplerJudge(seed=1)
    assert judge.check(ids, Question(logits, temperature)) is None
    assert judge.draws == B // 2
    ids[0] = logits[0].argmin()
    assert judge.check(ids, Question(logits, temperature)).label == "WRONG(value)"


def test_masked_tokens_are_never_drawn():
    logits = torch.zeros(B, V)
    logits[:, 10] = -torch.inf
    judge = SamplerJudge(seed=1)
    assert judge.check(torch.full((B,), 10), Question(logits, full(1.0))).label == "WRONG(value)"
    assert judge.check(torch.full((B,), 11), Question(logits, full(1.0))) is None


def test_allowed_keeps_the_smallest_set_that_reaches_p_and_ties_at_k():
    p = torch.tensor([[0.5, 0.3, 0.1, 0.1]])
    kept, may, untied = allowed(p.log(), torch.ones(1), None, torch.tensor([0.75]))
    assert kept[0] == pytest.approx([0.625, 0.375, 0, 0], abs=1e-6)
    assert may.tolist() == [[True, True, False, False]]
    assert untied.all()
    kept, may, untied = allowed(p.log(), torch.ones(1), torch.tensor([3]), None)
    assert may.all(), "tokens that tie with the k-th stay"
    assert not untied.any()


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (0, 0.25)])
def test_which_of_tied_tokens_stay_is_free(top_k, top_p):
    """The lowest ids, or all of them: neither is condemned, and untied rows are judged as ever."""
    generator = torch.Generator().manual_seed(10)
    count = top_k or int(0.25 * V) + 1
    for width in (count, V if top_k else count):
        judge = SamplerJudge(seed=2)
        for _ in range(CALLS):
            ids = torch.randint(0, width, (B,), generator=generator)
            assert (
                judge.check(ids, Question(torch.zeros(B, V), full(1.0), torch.full((B,), top_k), full(top_p)))
                is None
            )
        assert judge.verdict().passed
        assert judge.draws == 0


def test_uniformity_tells_even_from_uneven():
    even = (torch.arange(1600, dtype=torch.float64) + 0.5) / 1600
    assert uniformity(even) == pytest.approx(1)
    assert uniformity(even**1.3) < sampler.SIGNIFICANCE


def test_few_draws_are_judged_by_membership_alone():
    judge = SamplerJudge(seed=1)
    assert judge.check(torch.zeros(B, dtype=torch.int64), Question(torch.zeros(B, V), full(1.0))) is None
    assert judge.verdict().passed


@pytest.mark.parametrize("step", [1 / 4096, 0.6180339887498949])
def test_numbers_that_creep_from_call_to_call_fail(step: float) -> None:
    """Evenly over many calls, and each by the one before."""
    generator = torch.Generator().manual_seed(5)
    start_B = torch.rand(B, generator=generator)
    logits = torch.randn(B, V, generator=generator)
    question = Question(logits, full(1.0))
    mass_BV = logits.softmax(1).cumsum(1)

    def verdict(in_steps: bool, independent: bool) -> str:
        judge = SamplerJudge(seed=9, in_steps=in_steps)
        for call in range(CALLS):
            creeping_B = (start_B + call * step) % 1
            u_B = torch.rand(B, generator=generator) if independent else creeping_B
            ids_B = torch.searchsorted(mass_BV, u_B.unsqueeze(1)).squeeze(1).clamp(max=V - 1)
            assert judge.check(ids_B, question) is None
        return judge.verdict().verdict.label

    assert verdict(in_steps=True, independent=True) == "PASSED"
    assert verdict(in_steps=True, independent=False) == "WRONG(value)"
    if step > 0.5:
        assert verdict(in_steps=False, independent=False) == "PASSED", "it is even over all calls"
