"""`fk check`: each rule on a file that breaks it, with its line, and silence on files that break none."""

from __future__ import annotations

import os
import subprocess

import pytest
from click.testing import CliRunner

from fastkernels.cli.check import command
from fastkernels.errors import UsageError
from fastkernels.loader.authored import kernel_names
from fastkernels.loader.check import check

GOOD = """import torch
from torch import nn
class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6, *, lanes=4):
        super().__init__()
    def forward(self, x, residual=None):
        return x
"""


def findings(tree, source: str, name: str = "L1/rms_norm.py"):
    return [(f.rule, f.line, f.severity) for f in check(tree("mine", {name: source}))]


def test_a_file_that_is_no_python_is_refused(tree):
    helper = (
        tree("mine", {"L1/rms_norm.py": GOOD, "L1/rms_norm_kernel.c": "int f(void);"})
        / "L1/rms_norm_kernel.c"
    )
    with pytest.raises(UsageError, match=r"rms_norm_kernel\.c: no Python file\. Give a task file"):
        check(helper)


def test_a_good_file(tree):
    assert findings(tree, GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "rule", "line"),
    [
        ("self, hidden_size, eps=1e-6, *, lanes=4", "self, hidden_size", "init-signature", 4),
        ("eps=1e-6", "eps", "init-signature", 4),
        ("eps=1e-6", "eps=1e-5", "init-signature", 4),
        ("hidden_size, eps=1e-6", "size, eps=1e-6", "init-signature", 4),
        ("*, lanes=4", "*, lanes", "init-signature", 4),
        ("hidden_size, eps=1e-6, *,", "hidden_size, *, eps=1e-6,", "init-signature", 4),
        ("self, x, residual=None", "self, x", "forward-signature", 6),
        ("self, x, residual=None", "self, *args", "forward-signature", 6),
        ("x, residual=None", "residual, x=None", "forward-signature", 6),
        ("def forward", "def forwards", "forward-signature", 3),
        ("class RMSNorm", "class RmsNorm", "missing-class", 1),
        ("class RMSNorm(nn.Module):", "def RMSNorm(x):", "missing-class", 3),
        ("return x", "return (x", "syntax", 7),
        ("return x", "return x\x00", "syntax", 1),
        ("return x", f"return {'-' * 100_000}x", "excessive", 1),
        ("return x", f"return x{'.T' * 20_000}", "excessive", 1),
        ("return x", f"return x{'.T' * 1_000}", "excessive", 1),
        ("import torch", f"if A: B\n{('elif A: B' + chr(10)) * 1_000}", "excessive", 1),
        ("return x", f"return x\n#{'long' * 2**18}", "excessive", 1),
    ],
)
def test_structure(tree, old, new, rule, line):
    assert old in GOOD
    found = findings(tree, GOOD.replace(old, new, 1))
    assert (rule, "error") in [(r, s) for r, _, s in found]
    if rule != "syntax":
        assert (rule, line, "error") in found


DEEP = 130  # and what stands around it: a little less than is refused


@pytest.mark.parametrize(
    "source",
    [
        f"{'if A: pass' + chr(10)}{('elif A: pass' + chr(10)) * DEEP}",
        f"import torch\ntorch{'.T' * DEEP}()\n",
        f"@a({'-' * DEEP}1)\ndef f(x={'not ' * DEEP}1): ...\n",
        f"try: ...\nexcept E: f({'-' * DEEP}1)(2)\n",
        f"try: ...\nexcept E: {'f(' * (DEEP // 2)}{')' * (DEEP // 2)}.x(2)\n",
        f"class RMSNorm:\n def __init__(self, x={'(' * (DEEP // 2)}1{',)' * (DEEP // 2)}): ...\n",
        f"class RMSNorm:\n def __init__(self, x={'{1: ' * (DEEP // 2)}1{'}' * (DEEP // 2)}): ...\n",
        f"class RMSNorm:\n def __init__(self, x={'lambda: ' * (DEEP // 2)}1): ...\n",
    ],
)
def test_what_is_read_at_all_is_read_whatever_its_depth(tree, source):
    found = findings(tree, source)
    assert "excessive" not in [rule for rule, _, _ in found]
    kernel_names([tree("mine", {})])


def test_files_that_never_end_are_not_read(tree):
    mine = tree("mine", {"L1/rms_norm.py": GOOD})
    os.mkfifo(mine / "L1" / "glu.py")
    os.mkfifo(mine / "L1" / "glu.cu")
    for name in ("linear.py", "linear.cu"):
        (mine / "L1" / name).symlink_to("/dev/zero")
    assert [(f.file.name, f.rule) for f in check(mine)] == [
        ("glu.py", "unreadable"),
        ("linear.py", "unreadable"),
    ]
    assert kernel_names([mine]) == set()


def test_folders_deeper_than_python_recurses(tree):
    mine = tree("mine", {"L1/rms_norm.py": GOOD})
    place = os.open(mine / "L1", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=place)
        below = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    assert check(mine) == []
    assert kernel_names([mine]) == set()
    subprocess.run(["rm", "-r", mine], check=True)  # what pytest uses is not deep enough


def test_a_link_to_all_of_the_machine(tree):
    mine = tree("mine", {"L1/rms_norm.py": GOOD})
    (mine / "L1" / "circle").symlink_to("..")
    assert check(mine) == []
    (mine / "L1" / "all").symlink_to("/")
    with pytest.raises(UsageError, match=r"L1: more than 10000 files"):
        check(mine)
    kernel_names([mine])


def test_what_has_the_name_of_a_file_only(tree):
    mine = tree("mine", {"L1/glu.py": "class SiluAndMul: pass", "L1/rms_norm.py/inside.txt": ""})
    (mine / "L1" / "linear.py").symlink_to("linear.py")
    (mine / "L1" / "rope.py").symlink_to("nowhere.py")
    (mine / "L1" / ".#glu.py").symlink_to("me@here.4711:99")  # Emacs, while it holds changes
    found = [(f.file.name, f.rule) for f in check(mine) if f.file.name != "glu.py"]
    assert found == [("linear.py", "unreadable"), ("rms_norm.py", "unreadable"), ("rope.py", "unreadable")]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("torch.library.define('x::y', '() -> ()')", "torch-op"),
        (
            "from torch.library import custom_op\n@custom_op('a::b', mutates_args=())\ndef f(x): ...",
            "torch-op",
        ),
        ("torch.cuda.Event = None", "patch"),
        ("import time\ntime.perf_counter = lambda: 0", "patch"),
        ("from torch import cuda\nsetattr(cuda, 'synchronize', print)", "patch"),
        ("import sys\nsys.modules['time'] = None", "patch"),
        ("del torch.allclose", "patch"),
        ("torch.Tensor.norm: object = None", "patch"),
        ("from unittest import mock\nmock.patch('time.time')", "patch"),
        ("import os as system\nsystem._exit(0)", "exit"),
        ("import sys\nsys.exit()", "exit"),
        ("exit()", "exit"),
        ("raise SystemExit(0)", "exit"),
        ("import os\nos.kill(1, 9)", "signal"),
        ("import signal\nsignal.alarm(1)", "signal"),
        ("torch.set_num_threads(1)", "global-state"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "global-state"),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'", "global-state"),
        ("import inspect\ninspect.currentframe()", "introspection"),
        ("import gc\ngc.get_objects()", "introspection"),
        ("from fastkernels.judge import oracle", "harness"),
        ("import fastkernels.runner.inside.main", "harness"),
        ("from fastkernels import registry", "harness"),
    ],
)
def test_forbidden(tree, line, rule):
    assert rule in {r for r, _, severity in findings(tree, f"{GOOD}{line}\n") if severity == "error"}


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("eval('1')", "dynamic-code"),
        ("import threading\nthreading.Thread(target=print)", "thread"),
        ("torch.cuda.Stream()", "side-stream"),
        (
            "from fastkernels import kernels\ntry:\n    f()\nexcept OSError:\n    kernels.rms_norm(1, 2, 3)",
            "silent-fallback",
        ),
    ],
)
def test_warnings(tree, line, rule):
    assert [(r, s) for r, _, s in findings(tree, f"{GOOD}{line}\n")] == [(rule, "warning")]


def test_what_candidates_may_do(tree):
    assert (
        findings(
            tree,
            GOOD
            + """
import ctypes, subprocess, os, time
from fastkernels import kernels
from fastkernels.baseline.L1.rms_norm import RMSNorm as Base
from fastkernels.nn.context import step
from torch.utils.cpp_extension import load_inline
from . import _helper
subprocess.run(["cc", "x.c"], check=True)
signal = torch.ones(1)
signal.sum()
exit_code = os.environ.get("HOME")
_helper.table = {}
with torch.no_grad():
    time.perf_counter()
""",
        )
        == []
    )


def test_inherited_methods_and_alias_classes(tree):
    base = "from fastkernels.baseline.L1.rms_norm import RMSNorm as Base\n"
    assert findings(tree, base + "class RMSNorm(Base):\n    pass\n") == []
    assert findings(tree, base + "class Fast(Base):\n    pass\nRMSNorm = Fast\n") == []


def test_unknown_files_with_the_nearest_name(tree):
    mine = tree("mine", {"L1/rmsnorm.py": GOOD, "L1/rms_norm.py": GOOD, "L1/_helper.py": "x = 1\n"})
    (found,) = check(mine)
    assert (found.file.name, found.rule) == ("rmsnorm.py", "unknown-task")
    assert "rms_norm" in found.message


@pytest.mark.parametrize(
    "line", ["import rms_norm_extra", "from rms_norm_extra import f", "from L1.rms_norm_extra import f"]
)
def test_an_absolute_import_of_a_helper(tree, line):
    mine = tree("mine", {"L1/rms_norm.py": f"{line}\n{GOOD}", "L1/rms_norm_extra.py": "f = 1\n"})
    absolute, unknown = check(mine)
    assert (absolute.file.name, absolute.line, absolute.rule) == ("rms_norm.py", 1, "absolute-import")
    assert "Only relative imports reach" in absolute.message
    assert unknown.rule == "unknown-task"
    assert "relatively: from . import rms_norm_extra" in unknown.message


def test_a_relative_import_of_a_helper_and_a_library_of_its_name(tree):
    right = f"from . import rms_norm_extra\nimport json\n{GOOD}"
    mine = tree("mine", {"L1/rms_norm.py": right, "L1/rms_norm_extra.py": "f = 1\n"})
    assert check(mine) == []
    mine = tree("too", {"L1/rms_norm.py": right, "L1/rms_norm_extra.py": "", "L1/json.py": ""})
    assert [(f.file.name, f.rule) for f in check(mine)] == [("json.py", "unknown-task")]


def test_helpers_are_checked_too(tree):
    mine = tree("mine", {"L1/rms_norm.py": GOOD, "L1/_helper.py": "import os\nos._exit(0)\n"})
    assert [(f.file.name, f.line, f.rule) for f in check(mine)] == [("_helper.py", 2, "exit")]


def test_one_file_and_a_file_outside_of_a_tree(tree):
    mine = tree("mine", {"L1/rms_norm.py": "class X: pass\n", "L1/glu.py": "", "loose.py": ""})
    assert {f.file.name for f in check(mine / "L1/rms_norm.py")} == {"rms_norm.py"}
    assert [f.rule for f in check(mine / "loose.py")] == ["unknown-task"]


def test_command(tree):
    good, bad = tree("good", {"L1/rms_norm.py": GOOD}), tree("bad", {"L1/rms_norm.py": "def f(:\n"})
    result = CliRunner().invoke(command, [str(good)])
    assert (result.exit_code, result.stdout) == (0, "")
    result = CliRunner().invoke(command, [str(good), str(bad)])
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{bad / 'L1/rms_norm.py'}:1: error syntax: ")
