"""What a candidate must not do, as far as its syntax shows it (docs: measurement, what counts as cheating).

This finds honest mistakes early and names them; it is no wall. The wall is that the judge runs in another
process. Compiling and loading one's own C, C++, CUDA or Triton is welcome: subprocess, ctypes and
torch.utils.cpp_extension are not listed here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fastkernels.loader import source


@dataclass(frozen=True)
class Rule:
    name: str
    patterns: tuple[str, ...]  # of full dotted names: calls, or modules for `imports`
    why: str
    severity: str = "error"


CALLS = (
    Rule(
        "torch-op",
        ("torch.library.*", "torch.ops.load_library"),
        "task files are imported once for each overlay, and a second registration re-binds the operator",
    ),
    Rule(
        "exit",
        ("os._exit", "os.abort", "sys.exit", "exit", "quit"),
        "a worker that ends has no result: raise an exception instead",
    ),
    Rule("signal", ("os.kill", "os.killpg", "signal.*"), "a candidate sends and handles no signals"),
    Rule(
        "global-state",
        (
            "torch.set_*",
            "torch.use_deterministic_algorithms",
            "torch.manual_seed",
            "torch.seed",
            "torch.cuda.manual_seed*",
            "torch.backends.*.enable_*",
            "torch.cuda.set_*",
            "torch._C._set_*",
        ),
        "process-wide settings would change the rest of the model",
    ),
    Rule(
        "introspection",
        (
            "sys._getframe",
            "sys.settrace",
            "sys.setprofile",
            "inspect.currentframe",
            "inspect.stack",
            "gc.get_objects",
            "gc.get_referrers",
            "gc.get_referents",
        ),
        "a candidate computes from its arguments and does not look at its caller",
    ),
    Rule("patch", ("unittest.mock.patch", "unittest.mock.patch.*"), "other modules are not patched"),
    Rule("dynamic-code", ("eval", "exec"), "code that is made at run time cannot be reviewed", "warning"),
    Rule(
        "thread",
        ("threading.Thread", "threading.Timer", "concurrent.futures.*", "multiprocessing.*"),
        "work must have ended when forward returns (on a GPU: when the current stream has)",
        "warning",
    ),
    Rule(
        "side-stream",
        ("torch.cuda.Stream", "torch.cuda.ExternalStream"),
        "work on another stream must be joined to the current one before forward returns",
        "warning",
    ),
)
# What a candidate may import of this package.
OPEN = ("fastkernels.baseline", "fastkernels.kernels", "fastkernels.nn", "fastkernels.errors")


def violations(tree: ast.Module) -> Iterator[tuple[str, int, str, str]]:
    """(rule, line, message, severity) in the order of the file's lines."""
    names = source.imported_names(tree)
    found = [hit for node in ast.walk(tree) for hit in _of_node(node, names)]
    yield from sorted(found, key=lambda hit: hit[1])


def _of_node(node: ast.AST, names: dict[str, str]) -> Iterator[tuple[str, int, str, str]]:
    if isinstance(node, ast.Call):
        yield from _call(node, names)
    elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
        yield from _assignment(node, names)
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from _import(node)
    elif isinstance(node, ast.Raise) and node.exc is not None:
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if source.resolved(raised, names) == "SystemExit":
            yield "exit", node.lineno, "raises SystemExit: a worker that ends has no result", "error"
    elif isinstance(node, ast.ExceptHandler):
        yield from _handler(node, names)
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call):  # a decorator that is called is a call anyway
                yield from _name(decorator, names)


def _call(node: ast.Call, names: dict[str, str]) -> Iterator[tuple[str, int, str, str]]:
    yield from _name(node.func, names)
    function = source.resolved(node.func, names)
    if function in ("setattr", "delattr") and node.args and (target := _module_of(node.args[0], names)):
        yield "patch", node.lineno, f"{function} on {target}: other modules are not patched", "error"


def _name(expression: ast.expr, names: dict[str, str]) -> Iterator[tuple[str, int, str, str]]:
    full, chain = source.resolved(expression, names), source.dotted(expression)
    if chain is None or ("." in chain and chain.partition(".")[0] not in names):
        return  # an attribute of a local variable, whatever that is called
    for rule in CALLS:
        if full and any(fnmatchcase(full, pattern) for pattern in rule.patterns):
            yield rule.name, expression.lineno, f"{full}: {rule.why}", rule.severity
            return


def _assignment(node: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete, names: dict[str, str]):
    targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [node.target]
    for target in targets:
        inner = target.value if isinstance(target, (ast.Subscript, ast.Attribute)) else None
        module = _module_of(inner, names) if inner is not None else None
        if module is None:
            continue
        what = f"{module}.{target.attr}" if isinstance(target, ast.Attribute) else f"{module}[...]"
        rule = "global-state" if what.startswith("torch.backends.") else "patch"
        why = (
            "process-wide settings would change the rest of the model"
            if rule == "global-state"
            else ("other modules are not patched")
        )
        if what.startswith("os.environ"):
            rule, why = "global-state", "the environment is the harness's"
        yield rule, node.lineno, f"sets {what}: {why}", "error"


def _module_of(expression: ast.expr, names: dict[str, str]) -> str | None:
    """Full name of the imported thing that an expression leads to; None for the file's own and its tree's."""
    chain = source.dotted(expression)
    root = chain.partition(".")[0] if chain else None
    if root in names and not names[root].startswith("."):
        return source.resolved(expression, names)
    return None


def _import(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, int, str, str]]:
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif node.level == 0 and node.module == "fastkernels":
        modules = [f"fastkernels.{alias.name}" for alias in node.names]
    else:
        modules = [node.module or ""] if node.level == 0 else []
    for module in modules:
        if module.partition(".")[0] == "fastkernels" and not any(
            module == allowed or module.startswith(f"{allowed}.") for allowed in OPEN
        ):
            yield "harness", node.lineno, f"imports {module}: a candidate may use {', '.join(OPEN)}", "error"


def _handler(node: ast.ExceptHandler, names: dict[str, str]) -> Iterator[tuple[str, int, str, str]]:
    """`except: return the baseline's result` hides that the candidate did nothing."""
    for inner in ast.walk(node):
        if not isinstance(inner, ast.Call):
            continue
        full = source.resolved(inner.func, names) or ast.unparse(inner.func)
        if full.startswith((source.BASELINE_PACKAGE, "fastkernels.kernels", "super().forward")):
            yield (
                "silent-fallback",
                inner.lineno,
                "the baseline after `except`: choose it with an `if`",
                "warning",
            )
