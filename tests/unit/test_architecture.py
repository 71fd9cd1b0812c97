"""The arrows point one way: each package imports only packages below it; no model is named in src."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from fastkernels import registry

SOURCE = Path(__file__).parents[2] / "src" / "fastkernels"

# A package may import packages of a lower rank. `registry.build` walks models, so it sits above the loader,
# with the case that it makes of a call; `gate.verdicts` is pure, and reports read it.
RANKS = {
    "creation": 0,
    "errors": 0,
    "free_memory": 0,
    "interrupts": 0,
    "layout": 0,
    "progress": 0,
    "records": 0,
    "settings": 1,
    "kernels": 1,
    "nn": 2,
    "registry": 3,
    "loader": 4,
    "baseline": 4,
    "registry.build": 5,
    "registry.case_of_call": 5,
    "measure": 5,
    "engine": 5,
    "score": 6,
    "judge": 6,
    "gate.verdicts": 6,
    "audit": 7,
    "runner": 7,
    "report": 7,
    "gate": 8,
    "capture": 8,
    "cluster": 8,
    "serve": 8,
    "profiling": 8,
    "cli": 9,
    "__main__": 10,
    "__init__": 10,
}


FACES = ("detector", "encoder", "image_pipeline", "llm", "loop", "model", "progress")
# Rooms of a package, the lowest first. A room may import lower ones; those of one line do not see each other.
ROOMS = {
    "engine": (("core",), ("programs",), ("media",), FACES),
    "runner": (
        ("sandbox", "source_rules", "transfer"),
        ("inside",),
        ("ranks",),
        ("worker",),
        ("kernel_trial", "models", "tuning"),
    ),
}


def owner(parts: tuple[str, ...]) -> str:
    dotted = ".".join(parts[:2])
    return dotted if dotted in RANKS else parts[0]


def imported(tree: ast.AST) -> list[tuple[tuple[str, ...], int]]:
    """(module path below fastkernels, line) of every import, also inside functions."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [(tuple(n.split(".")[1:]), node.lineno) for n in names if n.startswith("fastkernels.")]
    return found


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(SOURCE).as_posix())
def test_arrows_point_one_way(file: Path) -> None:
    here = owner(file.relative_to(SOURCE).with_suffix("").parts)
    for parts, line in imported(ast.parse(file.read_text())):
        there = owner(parts)
        if there in RANKS and there != here:
            same_package = here.partition(".")[0] == there.partition(".")[0] and RANKS[there] <= RANKS[here]
            assert RANKS[there] < RANKS[here] or same_package, (
                f"{file.name}:{line} {here} -> {there} runs back"
            )


def test_rooms_of_a_package_see_lower_ones_only() -> None:
    for package, levels in ROOMS.items():
        rank = {room: level for level, rooms in enumerate(levels) for room in rooms}
        assert {p.stem for p in (SOURCE / package).iterdir()} - {"__init__", "__pycache__"} == set(rank)
        for file in sorted((SOURCE / package).rglob("*.py")):
            here = file.relative_to(SOURCE / package).with_suffix("").parts[0]
            for (at, *parts), line in imported(ast.parse(file.read_text())):
                if at != package or here == "__init__" or (here in FACES and parts[0] in FACES):
                    continue
                there = parts[0]
                assert there == here or rank[there] < rank[here], f"{file}:{line} {here} -> {there} runs back"


def test_no_module_imports_in_a_circle() -> None:
    """Imports for the type checker alone included."""
    modules = {file.relative_to(SOURCE).with_suffix("").parts: file for file in FILES}
    modules = {parts[:-1] if parts[-1] == "__init__" else parts: file for parts, file in modules.items()}

    def module(parts: tuple[str, ...]) -> tuple[str, ...]:
        while parts and parts not in modules:
            parts = parts[:-1]
        return parts

    waits = {
        name: {module(parts) for parts, _ in imported(ast.parse(file.read_text()))} - {name, ()}
        for name, file in modules.items()
    }
    TopologicalSorter(waits).prepare()  # raises CycleError with the circle


def test_ranks_name_every_package() -> None:
    packages = {p.name for p in SOURCE.iterdir() if p.is_dir() and any(p.rglob("*.py"))}
    modules = {p.stem for p in SOURCE.glob("*.py")}
    assert packages | modules <= set(RANKS), "a new package needs a rank"


def test_nothing_in_src_names_a_model() -> None:
    known = registry.architectures()
    classes = {name.lower() for entry in known for name in entry.hf_architectures}
    names = classes | {name for entry in known for name in (entry.id, *entry.model_types)}
    for file in FILES:
        code = ast.parse(file.read_text())
        docstrings = {
            id(n.body[0].value)
            for n in ast.walk(code)
            if isinstance(n, ast.Module | ast.FunctionDef | ast.ClassDef)
            and n.body
            and isinstance(n.body[0], ast.Expr)
        }
        for node in ast.walk(code):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                words = node.value.lower()
                # Help texts show an example; a comparison or a dictionary key is behaviour.
                assert words not in names, f"{file}:{node.lineno} branches on '{node.value}'"
