"""sample: its noise, its distribution, its allowed sets, its independence of the batch."""

import importlib
import math

import pytest
import torch

from fastkernels import kernels
from fastkernels.kernels.policy import interpreting
from fastkernels.kernels.sample import id_of
from fastkernels.kernels.sample.philox import exponential_noise, philox
from tests.unit.kernels.implementations import REFERENCE, TRITON

ALL = [REFERENCE, TRITON]
narrowing, sort = (
    importlib.import_module(f"fastkernels.kernels.sample.{name}") for name in ("narrowing", "threshold")
)


def draws(logits_V, temperature, count, impl, top_k=None, top_p=None, seed=0, row_size=500):
    """`count` draws of one distribution at positions 0 .. count - 1."""
    ids = []
    for start in range(0, count, row_size):
        positions = torch.arange(start, min(start + row_size, count))
        rows = len(positions)
        ids.append(
            kernels.sample(
                logits_V.expand(rows, -1).contiguous(),
                torch.full((rows,), temperature),
                None if top_k is None else torch.full((rows,), top_k, dtype=torch.int32),
                None if top_p is None else torch.full((rows,), top_p),
                torch.full((rows,), seed),
                positions,
                impl=impl,
            )
        )
    return torch.cat(ids)


def random_problem(rows=5, vocabulary=5003):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, vocabulary, generator=generator) * 3
    seeds = torch.randint(-(2**62), 2**62, (rows,), generator=generator)
    positions = torch.randint(0, 2**40, (rows,), generator=generator)
    return logits, torch.linspace(0.3, 2.0, rows), seeds, positions


def test_philox_known_answers():
    """Vectors of the authors' Random123 library (kat_vectors, philox4x32 10)."""
    ones = 0xFFFFFFFF
    vectors = [
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones, ones), (ones,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        ((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
         (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ]  # fmt: skip
    for (low, high), counter, words in vectors:
        key = torch.tensor([low]) | (torch.tensor([high]) << 32)
        assert tuple(word.item() for word in philox(key, tuple(torch.tensor([c]) for c in counter))) == words


def test_noise_is_standard_exponential():
    noise = exponential_noise(torch.tensor([3]), torch.tensor([7]), 1_000_000, torch.float64)
    assert noise.min() > 0
    assert abs(noise.mean() - 1) < 5 / math.sqrt(noise.numel())
    assert abs((noise < 1).double().mean() - (1 - math.exp(-1))) < 2.5 / math.sqrt(noise.numel())
    # Of a million, some fall below 1e-5: they are Gumbel noise above 11, and none may be rounded to equal
    # steps.
    assert 3 <= (noise < 1e-5).sum() <= 25
    assert len(noise[noise < 1e-3].unique()) == (noise < 1e-3).sum()


@pytest.mark.parametrize("limits", ["none", "top_k", "top_p", "both"])
def test_triton_draws_the_reference_s_ids(limits):
    """The same noise: over many rows, not only the same distribution."""
    if not interpreting():
        pytest.skip("runs in test_interpreted.py")
    logits, temperature, seeds, positions = random_problem(rows=6)
    temperature[3] = 0.0
    top_k = torch.arange(6, dtype=torch.int32) * 25 if limits in ("top_k", "both") else None
    top_p = torch.linspace(0.1, 1.0, 6) if limits in ("top_p", "both") else None
    args = (logits, temperature, top_k, top_p, seeds, positions)
    expected = kernels.sample(*args, impl="reference")
    assert torch.equal(kernels.sample(*args, impl="triton"), expected)
    assert len(expected.unique()) > 5
    double = (logits.double(), temperature.double(), top_k, None if top_p is None else top_p.double())
    assert torch.equal(kernels.sample(*double, seeds, positions, impl="reference"), expected)


def test_triton_noise_matches():
    """A flat distribution shows the noise alone: the winner is right in every tile and tail."""
    if not interpreting():
        pytest.skip("runs in test_interpreted.py")
    for vocabulary in (1, 3, 5, 1023, 1024, 1025, 4097):
        seeds, positions = torch.tensor([-1, 2**41 - 1]), torch.tensor([2**33 + 5, 1])
        args = (torch.zeros(2, vocabulary), torch.ones(2), None, None, seeds, positions)
        expected = exponential_noise(seeds, positions, vocabulary, torch.float64).argmin(1)
        assert torch.equal(kernels.sample(*args, impl="triton"), expected)
        assert torch.equal(kernels.sample(*args, impl="reference"), expected)


def test_distribution():
    """Chi-square of 4,000 draws from 12 ids, at three temperatures; the seed is fixed, so the outcome is too.

    Triton draws the same ids (above); tests/gpu repeats this there, its interpreter would take minutes.
    """
    logits = torch.randn(12, generator=torch.Generator().manual_seed(1)) * 1.5
    for temperature in (0.5, 1.0, 1.7):
        ids = draws(logits, temperature, 4000, "reference")
        expected = (logits.double() / temperature).softmax(0) * len(ids)
        counts = torch.bincount(ids, minlength=12)
        chi_square = ((counts - expected) ** 2 / expected).sum().item()
        assert chi_square < 31.3, (
            f"{chi_square} at temperature {temperature}: chance 0.001 with 11 degrees of freedom"
        )


def test_distribution_within_top_k_and_top_p():
    probabilities = torch.tensor([0.02, 0.30, 0.10, 0.25, 0.05, 0.28])
    logits = probabilities.log()
    for top_k, top_p, allowed in (
        (3, None, [1, 3, 5]),
        (None, 0.5, [1, 5]),
        (5, 0.9, [1, 2, 3, 5]),
        (1, 0.9, [1]),
    ):
        ids = draws(logits, 1.0, 2000, "reference", top_k, top_p)
        assert sorted(ids.unique().tolist()) == allowed
        expected = probabilities[allowed].double() / probabilities[allowed].sum() * len(ids)
        chi_square = ((torch.bincount(ids, minlength=6)[allowed] - expected) ** 2 / expected).sum().item()
        assert chi_square < 16.3  # chance 0.001 with 3 degrees of freedom, less with fewer


@pytest.mark.parametrize("impl", ALL)
def test_batch_does_not_matter(impl):
    logits, temperature, seeds, positions = random_problem(rows=3)
    ids = kernels.sample(logits, temperature, None, None, seeds, positions, impl=impl)
    for row in range(3):
        one = slice(row, row + 1)
        alone = kernels.sample(
            logits[one], temperature[one], None, None, seeds[one], positions[one], impl=impl
        )
        assert alone == ids[row]
    order = torch.tensor([2, 0])
    part = kernels.sample(
        logits[order], temperature[order], None, None, seeds[order], positions[order], impl=impl
    )
    assert torch.equal(part, ids[order])


@pytest.mark.parametrize("impl", ALL)
def test_seed_and_position_matter(impl):
    logits, heat = torch.zeros(1, 1000), torch.ones(1)
    ids = {
        kernels.sample(
            logits, heat, None, None, torch.tensor([seed]), torch.tensor([position]), impl=impl
        ).item()
        for seed in (0, 1, 2**32, -1)
        for position in (0, 1, 2**32)
    }
    assert len(ids) == 12


@pytest.mark.parametrize("impl", ALL)
def test_greedy_rows_and_ties(impl):
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [-torch.inf, -2.0, -torch.inf, -2.0], [-torch.inf] * 4])
    zeros = torch.zeros(3, dtype=torch.int64)
    assert kernels.sample(logits, torch.zeros(3), None, None, zeros, zeros, impl=impl).tolist() == [1, 1, 0]
    # Far apart, in different tiles.
    wide = torch.zeros(1, 9000)
    wide[0, [700, 5000, 8999]] = 1.0
    assert kernels.sample(wide, torch.zeros(1), None, None, zeros[:1], zeros[:1], impl=impl).item() == 700
    # Greedy stays greedy beside drawn rows and whatever is allowed.
    heat, top_k = torch.tensor([0.0, 1.0, 0.0]), torch.tensor([2, 1, 3], dtype=torch.int32)
    logits[2] = torch.tensor([0.0, 0.0, 5.0, 5.0])
    assert kernels.sample(logits, heat, top_k, torch.full((3,), 0.5), zeros, zeros, impl=impl).tolist() == [
        1,
        1,
        2,
    ]


@pytest.mark.parametrize("impl", ALL)
def test_masked_logits_are_never_drawn(impl):
    logits = torch.full((10, 3000), -torch.inf)
    logits[:, [5, 2500]] = torch.tensor([0.0, -1.0])
    seeds, positions = torch.zeros(10, dtype=torch.int64), torch.arange(10)
    ids = kernels.sample(logits, torch.ones(10), None, None, seeds, positions, impl=impl)
    assert set(ids.tolist()) == {5, 2500}


@pytest.mark.parametrize("impl", ALL)
def test_ids_stay_in_the_vocabulary(impl):
    """NaN logits have no argmax, but an id beyond the vocabulary would crash the next embedding."""
    zeros = torch.zeros(2, dtype=torch.int64)
    ids = kernels.sample(
        torch.full((2, 10), torch.nan), torch.tensor([0.0, 1.0]), None, None, zeros, zeros, impl=impl
    )
    assert ids.min() >= 0
    assert ids.max() < 10


IN_TRITON = pytest.mark.skipif(not interpreting(), reason="runs in test_interpreted.py")


@pytest.mark.parametrize(
    "threshold",
    [
        pytest.param(sort.threshold, id="sort"),
        pytest.param(narrowing.threshold, id="triton", marks=IN_TRITON),
    ],
)
def test_thresholds(threshold):
    logits = torch.tensor([[2.0, 5.0, 5.0, 1.0, 5.0]])
    heat = torch.ones(1)

    def ids(top_k=None, top_p=None):
        k = None if top_k is None else torch.tensor([top_k], dtype=torch.int32)
        p = None if top_p is None else torch.tensor([top_p])
        return allowed(logits, threshold(logits, heat, k, p)).nonzero()[:, 1].tolist()

    # The order of ids: 1, 2, 4, 0, 3; ties at the k-th place are cut by id.
    first = [[1], [1, 2], [1, 2, 4], [0, 1, 2, 4], [0, 1, 2, 3, 4]]
    assert [ids(top_k=k) for k in (1, 2, 3, 4, 0, 9)] == [*first, first[-1]]
    # Each 5 has 0.324: one, two, three of them.
    assert [ids(top_p=p) for p in (1e-6, 0.3, 0.4, 0.9, 1.0)] == [[1], *first[:3], first[-1]]
    # top_p counts the mass of what top_k left: of two, each has a half.
    assert ids(top_k=2, top_p=0.45) == [1]


@IN_TRITON
@pytest.mark.parametrize("kind", ["random", "ties", "masked", "flat"])
@pytest.mark.parametrize("vocabulary", [1, 3, 5003])
def test_triton_allows_what_a_sort_allows(vocabulary, kind):
    """The sort's sums are in float64; where a float32 sum decides otherwise, next to no weight does."""
    generator, rows = torch.Generator().manual_seed(vocabulary), 11
    logits = {
        "random": torch.randn(rows, vocabulary, generator=generator) * 3,
        "ties": (torch.randn(rows, vocabulary, generator=generator) * 3).round(),
        "masked": torch.randn(rows, vocabulary, generator=generator).masked_fill(
            torch.rand(rows, vocabulary, generator=generator) < 0.5, -torch.inf
        ),
        "flat": torch.zeros(rows, vocabulary),
    }[kind]
    logits[:, 0] = 0.0
    heat = torch.linspace(0.0, 2.0, rows)
    # Rows of top_p alone, of both, of top_k alone.
    some = torch.randint(1, vocabulary + 1, (7,), dtype=torch.int32, generator=generator)
    top_k = torch.tensor([0, 0, 0, vocabulary + 2, *some], dtype=torch.int32)
    top_p = torch.tensor([0.0, 0.99951, *torch.rand(4, generator=generator), 0.99951, 1.0, 1.0, 1.0, 1.0])
    calls = [(top_k, top_p)]
    if vocabulary == 3 and kind == "ties":
        # None leaves a part out; the draws above do so with a large vocabulary.
        calls += [(top_k, None), (None, top_p)]
    probabilities = (logits / torch.where(heat > 0, heat, 1.0)[:, None]).double().softmax(1)
    for k, p in calls:
        exact = sort.threshold(logits.double(), heat.double(), k, None if p is None else p.double())
        difference = allowed(logits, exact) ^ allowed(logits, narrowing.threshold(logits, heat, k, p))
        exactly = top_p == 1 if p is not None else slice(None)
        assert not difference[exactly].any()
        assert (probabilities * difference).sum(1).max() < 2e-6


def allowed(logits, last):
    behind = torch.arange(logits.shape[1]) > last.id_B[:, None]
    return (logits > last.logit_B[:, None]) | ((logits == last.logit_B[:, None]) & ~behind)


def test_reference_in_chunks(monkeypatch):
    logits, temperature, seeds, positions = random_problem(rows=5)
    top_k = torch.tensor([0, 3, 5, 0, 9], dtype=torch.int32)
    whole = kernels.sample(logits, temperature, top_k, None, seeds, positions, impl="reference")
    module = importlib.import_module("fastkernels.kernels.sample.reference")
    monkeypatch.setattr(module, "MAX_ELEMENTS", 2 * logits.shape[1])
    assert torch.equal(
        kernels.sample(logits, temperature, top_k, None, seeds, positions, impl="reference"), whole
    )


def test_meta_device_and_tracing():
    logits, temperature, seeds, positions = random_problem()
    on_meta = kernels.sample(
        *(a.to("meta") for a in (logits, temperature)), None, None, seeds.to("meta"), positions
    )
    assert (on_meta.shape, on_meta.dtype, on_meta.device.type) == ((5,), torch.int64, "meta")
    compiled = torch.compile(lambda *args: kernels.sample(*args) + 1, backend="aot_eager", fullgraph=True)
    args = (logits, temperature, None, None, seeds, positions)
    assert torch.equal(compiled(*args) - 1, kernels.sample(*args))


@pytest.mark.parametrize("impl", ALL)
def test_the_best_of_all_parts_is_the_sample(impl):
    """Rows at temperature 0 and above it; equal logits in several parts, of which the lowest id counts."""
    logits, temperature, seeds, positions = random_problem(rows=6, vocabulary=5004)
    temperature[::2] = 0
    logits[0, [100, 2000, 5003]] = logits[2, [1252, 1251]] = 40.0
    logits[4] = -0.0
    logits[4, 3000:] = 0.0
    expected = kernels.sample(logits, temperature, None, None, seeds, positions, impl="reference")
    width = 5004 // 3
    keys = [
        kernels.sample_part(part.contiguous(), temperature, seeds, positions, rank * width, impl=impl)
        for rank, part in enumerate(logits.split(width, dim=1))
    ]
    assert id_of(torch.stack(keys).amax(0)).tolist() == expected.tolist()
    assert expected.tolist()[::2] == [100, 1251, 0]
    with pytest.raises(ValueError, match="first=6"):
        kernels.sample_part(logits, temperature, seeds, positions, 6)
