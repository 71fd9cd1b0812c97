"""The sweep of a decode step: which constants a variant changes, and for how long."""

import importlib

import pytest

from fastkernels.kernels import skinny


def test_a_variant_changes_one_product_and_attention(decode_step):
    attention = importlib.import_module(decode_step.ATTENTION)
    before, stages = skinny.tile_of(32, 4096, 4096, 132), vars(attention)["DEEP_STAGES"]
    changes = decode_step.parsed("4096x4096 ahead=16 splits=1; attention DEEP_STAGES=3")
    with decode_step.changed(changes):
        assert skinny.tile_of(32, 4096, 4096, 132) == before._replace(ahead=16, splits=1)
        assert skinny.tile_of(32, 14336, 4096, 132).ahead == before.ahead
        assert vars(attention)["DEEP_STAGES"] == 3
    assert skinny.tile_of(32, 4096, 4096, 132) == before
    assert vars(attention)["DEEP_STAGES"] == stages


@pytest.mark.parametrize("text", ["4096 x 4096 ahead=16", "attention DEEP_STAGES=three", "norm warps=4"])
def test_what_is_no_change_is_told(decode_step, text):
    with pytest.raises(ValueError, match="is no change"):
        decode_step.parsed(text)


def test_a_constant_that_is_not_there_is_told(decode_step):
    with pytest.raises(AttributeError), decode_step.changed(decode_step.parsed("attention NONESUCH=3")):
        pass
