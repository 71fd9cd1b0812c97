"""Discovery: what a path means, what is missing, what is reported; nothing heavy is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.loader.candidates import discover, replaced_variants

NORM = "class RMSNorm: pass\n"


def test_one_tree(tree):
    (found,) = discover([tree("mine", {"L1/rms_norm.py": NORM, "L2/gated_mlp.py": "class GatedMLP: pass\n"})])
    assert found.name == "mine"
    assert list(found.files) == ["L1/rms_norm", "L2/gated_mlp"]
    assert found.unknown == ()


def test_a_folder_of_trees_is_several_candidates(tree, tmp_path):
    tree("all/b", {"L1/rms_norm.py": NORM})
    tree("all/a", {"L1/glu.py": "class SiluAndMul: pass\n"})
    tree("all/notes", {"readme.py": ""})
    assert [(found.name, list(found.files)) for found in discover([tmp_path / "all"])] == [
        ("a", ["L1/glu"]),
        ("b", ["L1/rms_norm"]),
    ]


def test_a_stack_is_one_candidate_whose_top_file_counts(tree):
    top = tree("top", {"L1/rms_norm.py": NORM})
    below = tree("below", {"L1/rms_norm.py": NORM, "L1/glu.py": "class SiluAndMul: pass\n"})
    (found,) = discover([f"{top}{os.pathsep}{below}"])
    assert (found.name, found.layers) == ("top+below", (top, below))
    assert found.files == {"L1/rms_norm": top / "L1/rms_norm.py", "L1/glu": below / "L1/glu.py"}


def test_equal_names_are_told_apart_and_equal_paths_are_one(tree):
    one, two = (tree(f"{parent}/mine", {"L1/rms_norm.py": NORM}) for parent in ("x", "y"))
    assert [found.name for found in discover([one, two, one])] == ["x/mine", "y/mine"]


def test_what_is_no_candidate_says_what_one_is(tree, tmp_path):
    mine = tree("mine", {"L1/rms_norm.py": NORM})
    (tmp_path / "empty").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    for path, message in [
        (tmp_path / "absent", "no such folder"),
        (tmp_path / "circle", "no such folder"),
        ("~nobody_of_this_name/mine", "no such folder"),
        ("x" * 5000, "no such folder"),
        (os.pathsep, "names no folder"),
        (tmp_path / "empty", "no candidate here"),
        (mine / "L1" / "rms_norm.py", "a file"),
        (mine / "L1", f"Did you mean {mine}"),
        (f"{mine}{os.pathsep}{tmp_path / 'empty'}", "no candidate here to stack"),
    ]:
        with pytest.raises(UsageError, match=r"L1/rms_norm\.py") as error:
            discover([path])
        assert message in str(error.value)


def test_a_folder_behind_one_without_permission_is_not_said_to_be_missing(monkeypatch, tmp_path):
    def forbidden(self, **_):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(type(tmp_path), "stat", forbidden)  # for root no folder is closed
    with pytest.raises(PermissionError):
        discover([tmp_path / "mine"])


def test_unknown_files_are_reported_and_helpers_are_not(tree):
    (found,) = discover(
        [
            tree(
                "mine",
                {
                    "L1/rms_norm.py": f"from .rms_norm_kernel import K\nfrom . import launch\n{NORM}",
                    "L1/rms_norm_kernel.py": "K = 1\n",
                    "L1/launch.py": "",
                    "L1/_util.py": "",
                    "L1/parts/inner.py": "",
                    "L1/rmsnorm.py": NORM,
                    "L1/rms_norm_kernel.c": "",
                },
            )
        ]
    )
    assert [file.name for file in found.unknown] == ["rmsnorm.py"]
    assert list(found.files) == ["L1/rms_norm"]


def test_variants_that_a_file_replaces(tree):
    glu = registry.task("L1/glu")
    for source, variants in [
        ("class GeluAndMul: pass\n", {"gelu"}),
        ("from ._x import SiluAndMul\nGeluAndMul = SiluAndMul\n", {"gelu", "default"}),
        ("if True:\n    class SiluAndMul: pass\n", {"default"}),
        ("def broken(:\n", {"gelu", "default", "relu2"}),
        ("", set()),
    ]:
        file = tree("mine", {"L1/glu.py": source}) / "L1/glu.py"
        assert replaced_variants(file, glu).keys() == variants


def test_discovery_and_check_import_no_torch(tree):
    mine = tree("mine", {"L1/rms_norm.py": NORM})
    code = (
        "import sys\nfrom fastkernels.loader.candidates import discover\n"
        "from fastkernels.loader.check import check\n"
        f"discover([{str(mine)!r}])[0].shadowed(); check({str(mine)!r})\n"
        "assert not {'torch', 'triton', 'transformers'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "told"), [(os.fsdecode(b"mine\xff"), r"mine\\udcff'"), ("mine\x1b[2J", r"mine\\x1b\[2J'")]
)
def test_a_name_that_no_report_can_hold(tree, name, told):
    with pytest.raises(UsageError, match=f"{told}: .*Rename it"):
        discover([tree(name, {"L1/rms_norm.py": NORM})])
