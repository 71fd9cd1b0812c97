"""`fk show`: one task or one architecture, from the registry and the sources' syntax trees. No torch."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from fastkernels.cli import options
from fastkernels.cli.output import emit_json, heading, json_option, table
from fastkernels.errors import NotFoundError, UsageError
from fastkernels.layout import install_line

if TYPE_CHECKING:
    from fastkernels.records import Case, Size, TensorSpec
    from fastkernels.registry.schema import Architecture, TaskEntry

_MANY = 40  # cases: whoever gets more is told how to get fewer


@click.command(
    epilog="Examples: fk show L1/glu:gelu · fk show llama · fk show linear --architecture llama --timed"
)
@click.argument("name")
@options.narrowing("--architecture", metavar="A", help="Only a task's cases of this architecture.")
@options.case
@options.narrowing("--size", type=options.Choice(["tiny", "full"]), help="Only a task's cases of this size.")
@options.narrowing("--phase", metavar="P", help="Only a task's cases of this phase: prefill, decode, ...")
@click.option("--timed", is_flag=True, help="Only a task's cases that are timed.")
@json_option
def command(name: str, json_path: str | None, **narrows: Any) -> None:
    """Show a task or an architecture; NAME is an id or an alias.

    Of a task: contract, variants, users, implementations of its kernels, cases.
    """
    from fastkernels import registry

    architecture = next((entry for entry in registry.architectures() if entry.id == name), None)
    if architecture is None:
        try:
            entry = registry.task(name)
        except NotFoundError as error:
            if error.kind != "task":
                raise
            raise NotFoundError("task or architecture", name, _names(), "fk list") from None
        facts, render = _task(entry, **narrows), _print_task
    else:
        options.refuse(narrows, f"{name} is an architecture; cases are a task's. Its tasks: fk show {name}")
        facts, render = _architecture(architecture), _print_architecture
    if json_path:
        emit_json(facts, json_path)
    else:
        render(facts)


def _names() -> list[str]:
    from fastkernels import registry

    aliases = [alias.partition(":")[0] for entry in registry.tasks() for alias in entry.aliases]
    return [*(e.id for e in registry.architectures()), *(e.id for e in registry.tasks()), *aliases]


# ---------------------------------------------------------------- a task


def _task(entry: TaskEntry, **narrows: Any) -> dict[str, Any]:
    from fastkernels import registry
    from fastkernels.registry import source, uses

    ids = [task.id for task in registry.tasks()]
    below = uses.reached(entry.id) - {entry.id}
    kernels = dict.fromkeys(
        kernel
        for task in registry.tasks()
        if task.id == entry.id or task.id in below
        for kernel in task.kernels
    )
    return {
        "task": entry.id,
        "summary": entry.summary,
        "contract": source.contract(entry),
        "variants": {
            variant: {"class": entry.variants[variant], "signature": heads}
            for variant, heads in source.signatures(entry).items()
        },
        "mirrors": list(entry.mirrors),
        "rule": entry.rule,
        "not_admitted": {device: dict(cases) for device, cases in entry.not_admitted.items()},
        "mutates": list(entry.mutates),
        "replicates": entry.replicates,
        "aliases": list(entry.aliases),
        "builds_on": [task for task in ids if task in uses.direct(entry.id)],
        "used_by": uses.users(entry.id, ids),
        "architectures": [
            arch.id for arch in registry.architectures() if entry.id in registry.tasks_of(arch)
        ],
        "implementations": [
            {
                "kernel": kernel,
                "name": i.name,
                "devices": list(i.devices),
                "requires": list(i.requires),
                "extra": i.extra,
            }
            for kernel in kernels
            for i in source.implementations(kernel)
        ],
        "file": str(source.task_file(entry)),
        "cases": [_case(case) for case in _cases(entry, **narrows)],
    }


def _cases(
    entry: TaskEntry,
    architecture: str | None,
    case_glob: str | None,
    size: Size | None,
    phase: str | None,
    timed: bool,
) -> list[Case]:
    """Those that are left. NotFoundError for a word that fits no case of the task, UsageError where each fits
    some and none fits all."""
    from fastkernels import registry

    every = registry.cases(entry)
    if architecture is not None:
        registry.find_architectures([architecture])
    if case_glob is not None and every and not registry.matching(every, case_glob):
        raise NotFoundError("case", case_glob, [case.id for case in every], f"fk show {entry.id}")
    phases = dict.fromkeys(case.provenance.phase for case in every)
    if phase is not None and phase not in phases:
        raise NotFoundError("phase", phase, [p for p in phases if p], f"fk show {entry.id}")
    left = [
        case
        for case in registry.matching(registry.cases(entry, size, architecture), case_glob)
        if phase in (None, case.provenance.phase) and (case.timed or not timed)
    ]
    if every and not left:
        told = f"{entry.id} has {len(every)} cases, none of which fits all options"
        raise UsageError(f"{told}. See them: fk show {entry.id}")
    return left


def _case(case: Case) -> dict[str, Any]:
    return {
        "case": case.id,
        "variant": case.variant,
        "size": case.size,
        "calls": case.calls,
        "timed": case.timed,
        "phase": case.provenance.phase,
        "inputs": {
            name: _tensor(spec) if hasattr(spec, "shape") else spec  # type: ignore[arg-type]
            for name, spec in case.inputs.items()
        },
    }


def _tensor(spec: TensorSpec) -> str:
    """`bfloat16[512, 4096]`, and behind it the strides with which a model hands over what is not packed."""
    packed = f"{spec.dtype}{list(spec.shape)}"
    return packed if spec.view is None else f"{packed} strides {list(spec.view.strides)}"


def _refused(not_admitted: dict[str, dict[str, str]]) -> Iterator[str]:
    for device, cases in not_admitted.items():
        for name, why in cases.items():
            yield f"{'the task' if name == '*' else name} on {device}: {why}"


def _print_task(facts: dict[str, Any]) -> None:
    click.secho(f"{facts['task']}  {facts['summary']}", bold=True)
    click.echo(f"{facts['file']}\n\n{facts['contract']}")
    heading("Variants")
    for variant, entry in facts["variants"].items():
        click.echo(f"  {variant}")
        for head in entry["signature"]:
            click.echo(f"    {head}")
    heading("Facts")
    mutates = f"; writes {', '.join(facts['mutates'])}" if facts["mutates"] else ""
    replicates = "; every rank returns the same bits" if facts["replicates"] else ""
    for label, value in (
        ("mirrors", ", ".join(facts["mirrors"])),
        ("judged by", facts["rule"] + mutates + replicates),
        ("also called", ", ".join(facts["aliases"])),
        ("builds on", ", ".join(facts["builds_on"])),
        ("used by", ", ".join(facts["used_by"])),
        ("models", ", ".join(facts["architectures"])),
    ):
        if value:
            _fact(label, value)
    if facts["not_admitted"]:
        heading("Not admitted by fk audit: checked, and not timed")
        for line in _refused(facts["not_admitted"]):
            click.echo(f"  {line}")
    heading("Implementations of its kernels, best guess first")
    table(
        ("kernel", "implementation", "devices", "needs"),
        [(i["kernel"], i["name"], ", ".join(i["devices"]), _needs(i)) for i in facts["implementations"]],
    )
    heading("Cases (calls: in one step of the model; untimed cases are checked only)")
    several = len({c["variant"] for c in facts["cases"]}) > 1
    table(
        ("case", "variant", "size", "phase", "calls", "timed", "inputs"),
        [
            (
                c["case"],
                c["variant"] if several else "",
                c["size"],
                c["phase"],
                c["calls"],
                "yes" if c["timed"] else "no",
                _inputs(c),
            )
            for c in facts["cases"]
        ],
    )
    if len(facts["cases"]) > _MANY:
        narrow = "--architecture, --case, --size, --phase and --timed narrow them"
        click.echo(f"\n{len(facts['cases'])} cases: {narrow}")


def _fact(label: str, value: str) -> None:
    click.echo(f"  {label:<12} " + f"\n{'':<15}".join(_folded(value, 15)))


def _folded(value: str, indent: int) -> list[str]:
    """Lines, folded between words: some facts are lists of dozens."""
    from fastkernels.report.layout import ROOM  # not for `--help`

    return textwrap.wrap(value, ROOM - indent, break_long_words=False, break_on_hyphens=False)


def _needs(implementation: dict[str, Any]) -> str:
    requires = ", ".join(implementation["requires"])
    extra = implementation["extra"]
    return f"{requires} ({install_line(extra)})" if extra else requires


def _inputs(case: dict[str, Any]) -> str:
    return " ".join(f"{name}={str(value).replace(' ', '')}" for name, value in case["inputs"].items())


# ---------------------------------------------------------------- an architecture


def _architecture(entry: Architecture) -> dict[str, Any]:
    from fastkernels import registry
    from fastkernels.report.evidence import evidence

    reached = registry.tasks_of(entry)
    facts = entry.model_dump(mode="json")
    facts["evidence"] = vars(evidence(entry))
    facts["tasks"] = [task.id for task in registry.tasks() if task.id in reached]
    facts["cases"] = {
        task: {size: len(registry.cases(task, size, entry.id)) for size in ("tiny", "full")}
        for task in facts["tasks"]
    }
    wanted = registry.workloads(entry.workloads)
    facts["workloads"] = [{**workload.model_dump(mode="json"), "each": workload.each} for workload in wanted]
    return facts


def _compared(correctness: dict[str, Any]) -> str:
    """`program, logits: centred_cosine and total_variation`"""
    outputs = {
        name: [one["distance"] for one in chosen] for name, chosen in correctness.get("outputs", {}).items()
    }
    return ", ".join([correctness["kind"], *(f"{name}: {' and '.join(of)}" for name, of in outputs.items())])


def _print_architecture(facts: dict[str, Any]) -> None:
    click.secho(f"{facts['id']}  {facts['name']}", bold=True)
    defaults = {config: size for size, config in facts["default_config"].items()}
    for label, value in (
        ("category", facts["category"]),
        ("checkpoint", facts["checkpoint"]),
        ("license", facts["license"]),
        ("serves", ", ".join(facts["hf_architectures"])),
        ("reference", ", ".join(f"{use}: {name}" for use, name in facts["reference"].items())),
        ("correctness", _compared(facts["correctness"])),
    ):
        if value:
            click.echo(f"  {label:<12} {value}")
    level, missing = facts["evidence"]["level"], facts["evidence"]["missing"]
    click.echo(f"  {'evidence':<12} {level or 'none'}")
    for what in missing:
        click.echo(f"  {'':<12} for the next level: {what}")
    heading("Configurations")
    table(
        ("name", "size", "default", "dtype", "layers", "hidden", "heads", "GPUs", "what"),
        [
            (
                name,
                config["size"],
                f"for {defaults[name]}" if name in defaults else "",
                config["dtype"],
                config["config"].get("num_hidden_layers"),
                config["config"].get("hidden_size"),
                config["config"].get("num_attention_heads"),
                facts["tensor_parallel"].get(name, 1),
                config["summary"],
            )
            for name, config in facts["configs"].items()
        ],
    )
    heading("Workloads")
    table(
        ("name", "size", "kind", "requests", "each"),
        [(w["name"], w["size"], w["kind"], w["requests"], w["each"]) for w in facts["workloads"]],
    )
    heading("Tasks, with their numbers of cases")
    cases = facts["cases"].items()
    table(
        ("task", "tiny", "full"),
        [(task, sizes["tiny"], sizes["full"]) for task, sizes in cases if any(sizes.values())],
    )
    if without := [task for task, sizes in cases if not any(sizes.values())]:
        heading("Tasks that these import for other architectures: no case is of this one")
        click.echo("\n".join(_folded(", ".join(without), 0)))
