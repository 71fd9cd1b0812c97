"""Overlays: fall-through of names and files, re-reading of importers, blame and origin."""

from __future__ import annotations

import importlib

import pytest

from fastkernels.layout import data_dir
from fastkernels.loader.overlay import Overlay

BASE = {
    "L1/norm.py": "class Norm:\n    who = 'base'\nclass Other(Norm):\n    pass\n_HELPER = 3\n",
    "L1/act.py": "class Act:\n    who = 'base'\n",
    "L2/mlp.py": "from ..L1.norm import Norm, Other\nfrom ..L1.act import Act\n"
    "class MLP:\n    norm, other, act = Norm, Other, Act\n",
    "L4/model.py": "from ..L2.mlp import MLP\nclass Model:\n    mlp = MLP\n",
}


@pytest.fixture
def base(tree):
    return tree("base", BASE)


def test_candidate_reaches_every_level_and_baseline_stays(tree, base):
    top = tree("top", {"L1/norm.py": "class Norm:\n    who = 'top'\n"})
    candidate, baseline = Overlay((top, base)), Overlay((base,))
    swapped, plain = candidate.load("L4.model").Model, baseline.load("L4/model").Model
    assert (swapped.mlp.norm.who, swapped.mlp.act.who, plain.mlp.norm.who) == ("top", "base", "base")
    assert candidate.origin(swapped.mlp.norm) == top
    assert candidate.origin(swapped.mlp.act) == base
    assert candidate.task(swapped.mlp.norm) == "L1/norm"
    assert candidate.origin("L1.norm") == top
    assert candidate.origin("L1.absent") is None
    assert candidate.origin(dict) is None
    assert candidate.task(dict) is None


def test_names_left_out_come_from_the_layer_below(tree, base):
    top = tree("top", {"L1/norm.py": "class Norm:\n    who = 'top'\n"})
    overlay = Overlay((top, base))
    module = overlay.load("L1.norm")
    assert module.Other is overlay.load("L2.mlp").MLP.other
    assert module.Other.who == "base"
    assert module._HELPER == 3
    assert overlay.origin(module.Other) == base
    assert overlay.task(module.Other) == "L1/norm"
    with pytest.raises(AttributeError, match="Absent"):
        _ = module.Absent
    with pytest.raises(ImportError, match="Absent"):
        exec(f"from {overlay.package}.L1.norm import Absent")


def test_three_layers(tree, base):
    middle = tree("middle", {"L1/norm.py": "class Norm:\n    who = 'middle'\nclass Mine:\n    pass\n"})
    top = tree("top", {"L1/norm.py": "EXTRA = 1\n", "L1/act.py": "class Act:\n    who = 'top'\n"})
    overlay = Overlay((top, middle, base))
    mlp = overlay.load("L2.mlp").MLP
    assert (mlp.norm.who, mlp.other.who, mlp.act.who) == ("middle", "base", "top")
    assert [file.parent.parent for file in overlay.files("L1.norm")] == [top, middle, base]
    assert overlay.origin(overlay.load("L1.norm").Mine) == middle


def test_the_file_below_still_sees_the_candidate_beneath_it(tree, base):
    """L2/mlp of the candidate leaves MLP out: the baseline's MLP is re-read over the candidate's L1."""
    top = tree(
        "top", {"L1/norm.py": "class Norm:\n    who = 'top'\n", "L2/mlp.py": "class Mine:\n    pass\n"}
    )
    assert Overlay((top, base)).load("L2.mlp").MLP.norm.who == "top"


def test_helpers_packages_and_data_beside_a_task(tree, base):
    top = tree(
        "top",
        {
            "L1/norm.py": "from pathlib import Path\nfrom ._norm_util import NAME\n"
            "from .norm_parts.inner import DEEP\nclass Norm:\n"
            "    who = NAME + DEEP + (Path(__file__).parent / 'norm.txt').read_text()\n",
            "L1/_norm_util.py": "NAME = 'n'\n",
            "L1/norm_parts/__init__.py": "",
            "L1/norm_parts/inner.py": "from .._norm_util import NAME\nDEEP = 'd' + NAME\n",
            "L1/norm.txt": "t",
        },
    )
    assert Overlay((top, base)).load("L2.mlp").MLP.norm.who == "ndnt"


def test_syntax_error_names_file_and_line(tree, base):
    top = tree("top", {"L1/norm.py": "class Norm:\n    def forward(self:\n"})
    overlay = Overlay((top, base))
    with pytest.raises(SyntaxError) as error:
        overlay.load("L4.model")
    assert error.value.filename == str(top / "L1/norm.py")
    assert overlay.blame(error.value) == (top / "L1/norm.py", 2)


def test_import_error_names_file_and_line_and_does_not_stick(tree, base):
    top = tree("top", {"L1/norm.py": "x = 1\nimport no_such_module_here\n"})
    overlay = Overlay((top, base))
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_module_here") as error:
            overlay.load("L4.model")
        assert overlay.blame(error.value) == (top / "L1/norm.py", 2)
    (top / "L1/norm.py").write_text("class Norm:\n    who = 'mended'\n")
    assert overlay.load("L4.model").Model.mlp.norm.who == "mended"


def test_blame_prefers_the_candidate_to_the_baseline_it_calls(tree):
    base = tree("base", {"L1/norm.py": "def f(x):\n    return x / 0\n"})
    top = tree("top", {"L2/mlp.py": "from ..L1.norm import f\ndef g():\n    return f(1)\n"})
    overlay = Overlay((top, base))
    with pytest.raises(ZeroDivisionError) as error:
        overlay.load("L2.mlp").g()
    assert overlay.blame(error.value) == (top / "L2/mlp.py", 3)
    with pytest.raises(ZeroDivisionError) as error:
        overlay.load("L1.norm").f(1)
    assert overlay.blame(error.value) == (base / "L1/norm.py", 2)
    assert overlay.blame(ValueError()) is None


def test_circular_import_is_an_error_not_the_baseline(tree, base):
    top = tree("top", {"L1/norm.py": "from ..L2.mlp import MLP\nclass Norm:\n    who = 'top'\n"})
    with pytest.raises(ImportError, match="circular"):
        Overlay((top, base)).load("L1.norm")


def test_candidate_may_use_its_own_getattr(tree, base):
    top = tree("top", {"L1/norm.py": "def __getattr__(name):\n    return name\n"})
    assert Overlay((top, base)).load("L1.norm").anything == "anything"


def test_no_bytecode_is_read_or_written(tree, base):
    top = tree("top", {"L1/norm.py": "class Norm:\n    who = 'one'\n"})
    Overlay((top, base)).load("L4.model")
    assert not list(top.parent.rglob("__pycache__"))


def test_missing_module(base):
    with pytest.raises(ModuleNotFoundError, match=r"L1\.absent"):
        Overlay((base,)).load("L1.absent")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import norm_helper", "L1/norm_helper: from . import norm_helper"),
        ("from norm_helper import f", "L1/norm_helper: from . import norm_helper"),
        ("def f():\n    import norm_helper\nf()", "L1/norm_helper: from . import norm_helper"),
        ("import norm_parts.one", "L1/norm_parts: from . import norm_parts"),
        ("from L1.act import Act", "files of a candidate: from ..L1 import"),
        ("import nobody_has_it", None),
        ("import act", None),  # the baseline's
        ("from . import nobody_has_it", None),
        ("1 / 0", None),
    ],
)
def test_whoever_imports_a_file_of_a_candidate_absolutely_is_told_what_to_write(tree, base, source, told):
    files = {"L1/norm.py": source, "L1/norm_helper.py": "f = 1\n", "L1/norm_parts/one.py": ""}
    overlay = Overlay((tree("top", files), base))
    with pytest.raises((ImportError, ZeroDivisionError)) as error:
        overlay.load("L1.norm")
    advice = overlay.advice(error.value)
    assert advice is None if told is None else f"Only relative imports reach {told}" in advice


def test_package_name_depends_on_the_stack_alone(tree, base):
    top = tree("top", {"L1/norm.py": ""})
    assert Overlay((top, base)).package == Overlay((top / "L1" / "..", base)).package
    assert Overlay((top, base)).package != Overlay((base, top)).package


def test_baseline_is_importable_and_below_every_candidate(tree):
    assert list(importlib.import_module("fastkernels.baseline").__path__) == [str(data_dir("baseline"))]
    assert Overlay.over_baseline([tree("top", {"L1/x.py": ""})]).layers[-1] == data_dir("baseline").resolve()
