"""rope_decode_attention: rotate, store and attend in one call, by every implementation on this machine."""

import importlib

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels.policy import interpreting
from tests.rope_decode_case import CACHES, check, copied, make
from tests.unit.kernels.implementations import REFERENCE, TRITON, TRITON_DTYPE

ALL = [REFERENCE, pytest.param("parts", id="parts"), TRITON]
CASES = {
    "one-row": {"seq_lens": [37]},
    "first-keys": {"seq_lens": [1, 2, 1]},
    "block-ends": {"seq_lens": [15, 16, 17, 32, 33]},
    "padding-rows": {"seq_lens": [5, 0, 64, 0]},
    "padding-only": {"seq_lens": [0, 0]},
    "long": {"seq_lens": [300, 3]},
    "window": {"seq_lens": [3, 40, 90, 200], "window": 33},
    "window-of-one": {"seq_lens": [1, 17, 40], "window": 1},
    "small-blocks": {"seq_lens": [9, 33, 70], "block_size": 4, "window": 20},
    "no-groups": {"seq_lens": [21, 40], "heads": (3, 3)},
    "odd-group": {"seq_lens": [21, 0, 40], "heads": (15, 3)},
    "partly-rotated": {"seq_lens": [21, 40], "head_dim": 40, "rotated": 24},
    "wide-head": {"seq_lens": [21, 40], "head_dim": 128, "rotated": 128},
}


@pytest.mark.parametrize("dtype", [torch.float32, TRITON_DTYPE], ids=str)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("impl", ALL)
def test_is_its_parts(name, impl, dtype):
    # 16-bit outputs hold the rounding of the rotated query and key besides their own.
    check(make(dtype=dtype, **CASES[name]), impl, units=1.0 if dtype == torch.float32 else 4.0)


def test_exact_in_float64():
    check(make([1, 20, 0], torch.float64), "reference")


@pytest.mark.parametrize("impl", [TRITON])
@pytest.mark.parametrize("window", [None, 50])
def test_splits_share_the_cached_keys(impl, window, monkeypatch):
    """Rows with 1, 2, many and no splits in use, of which the first alone has the new key."""
    module = importlib.import_module("fastkernels.kernels.decode_attention.triton")
    splits = importlib.import_module("fastkernels.kernels.decode_attention.splits")
    monkeypatch.setattr(module, "multiprocessors", lambda device: 64)
    monkeypatch.setattr(splits, "LARGEST_TILE", 16)
    for seed, lengths in enumerate([[9, 20, 150, 0, 16, 17], [160, 1, 2, 40, 33, 49]]):
        *args, _ = make(lengths, torch.float32, window=window, seed=seed)
        check((*args, 160), impl)


@pytest.mark.parametrize("impl", [TRITON])
def test_strided_positions_and_slots(impl):
    args = list(make([9, 33, 70], torch.float32))
    for at in (3, 7):
        args[at] = args[at].repeat_interleave(2)[::2]
    check(args, impl)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_mutation_under_compile(backend):
    args = make([5, 20], torch.float32)

    @torch.compile(backend=backend, fullgraph=True)
    def called(*args):
        o_BHK = kernels.rope_decode_attention(*args)
        return o_BHK, args[5].nan_to_num().sum(), args[6].nan_to_num().sum()

    mine, plain = copied(args), copied(args)
    found = called(*mine)
    wanted = kernels.rope_decode_attention(*plain)
    torch.testing.assert_close(found[0], wanted)
    for at, total in zip(CACHES, found[1:], strict=True):
        torch.testing.assert_close(mine[at], plain[at], equal_nan=True)
        torch.testing.assert_close(total, plain[at].nan_to_num().sum())


def test_meta_device():
    args = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in make([7, 4], torch.float32)]
    o_BHK = kernels.rope_decode_attention(*args)
    assert o_BHK.is_meta
    assert o_BHK.shape == (2, 4, 16)


@pytest.mark.skipif(not interpreting(), reason="runs in test_interpreted.py")
def test_what_triton_does_not_serve():
    with pytest.raises(KernelError, match="float64"):
        kernels.rope_decode_attention(*make([5], torch.float64), impl="triton")
