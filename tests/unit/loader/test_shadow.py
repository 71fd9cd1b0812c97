"""Shadowing: a candidate that drops an import, or extends the baseline, and who is named for it."""

from __future__ import annotations

import pytest

from fastkernels.loader.candidates import discover

GLU = {"L1/glu.py": "class SiluAndMul: pass\n"}
ATTENTION = "from ..L1.{} import {}\nclass CausalAttention: pass\n"


def shadowed(tree, files):
    return discover([tree("mine", files)])[0].shadowed()


def test_nothing_is_shadowed_while_imports_stay(tree):
    assert shadowed(tree, GLU) == ()
    kept = "from ..L1.glu import SiluAndMul\nclass GatedMLP: pass\n"
    assert shadowed(tree, {**GLU, "L2/gated_mlp.py": kept}) == ()
    inside = "class GatedMLP:\n    def forward(self):\n        from ..L1 import glu\n"
    assert shadowed(tree, {**GLU, "L2/gated_mlp.py": inside}) == ()


@pytest.mark.parametrize(
    "upper",
    [
        "class GatedMLP: pass\n",
        "from fastkernels.baseline.L2.gated_mlp import GatedMLP as B\nclass GatedMLP(B): pass\n",
    ],
)
def test_a_dropped_import_shadows(tree, upper):
    assert shadowed(tree, {**GLU, "L2/gated_mlp.py": upper}) == (
        "L1/glu is shadowed by L2/gated_mlp, which no longer imports it",
    )


def test_a_name_that_is_too_long_for_a_file_is_none(tree):
    upper = f"from ..L1 import glu, {'a' * 300}\nclass GatedMLP: pass\n"
    assert shadowed(tree, {**GLU, "L2/gated_mlp.py": upper}) == ()


def test_imports_through_helpers_count(tree):
    assert (
        shadowed(
            tree,
            {
                **GLU,
                "L2/gated_mlp.py": "from ._mlp import f\nclass GatedMLP: pass\n",
                "L2/_mlp.py": "from ..L1.glu import SiluAndMul as f\n",
            },
        )
        == ()
    )


def test_the_lowest_that_drops_it_is_named(tree):
    found = shadowed(
        tree,
        {
            **GLU,
            "L2/gated_mlp.py": "class GatedMLP: pass\n",
            "L3/decoder_layer.py": "from ..L2.gated_mlp import GatedMLP\nclass DecoderLayer: pass\n",
        },
    )
    assert "L1/glu is shadowed by L2/gated_mlp, which no longer imports it" in found
    assert not any("by L3/decoder_layer" in line and "L1/glu" in line for line in found)


def test_a_distant_drop_is_seen(tree):
    found = shadowed(tree, {**GLU, "L3/decoder_layer.py": "class DecoderLayer: pass\n"})
    assert found == ("L1/glu is shadowed by L3/decoder_layer, which no longer imports it",)


def test_a_file_that_leaves_classes_out_keeps_the_imports_below(tree):
    partial = "class RowParallelLinear: pass\n"
    files = {"L1/linear.py": "class Linear: pass\n"}
    assert shadowed(tree, {**files, "L2/parallel_linear.py": partial}) == ()
    whole = "".join(
        f"class {name}: pass\n"
        for name in (
            "ColumnParallelLinear",
            "MergedColumnParallelLinear",
            "QKVParallelLinear",
            "RowParallelLinear",
        )
    )
    assert len(shadowed(tree, {**files, "L2/parallel_linear.py": whole})) == 1


def test_a_broken_file_shadows_nothing(tree):
    assert shadowed(tree, {**GLU, "L2/gated_mlp.py": "class GatedMLP(:\n"}) == ()
