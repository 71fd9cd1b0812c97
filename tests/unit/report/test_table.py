"""report/table.py: what a reader must find in the text of each report."""

from __future__ import annotations

import io

from fastkernels.records import Failure
from fastkernels.report import table
from fastkernels.report.layout import Column, plain
from fastkernels.report.layout import table as grid


def line(text: str, start: str) -> str:
    return next(found for found in text.splitlines() if found.startswith(start))


def test_cpu_results_are_labelled(kernel_report, eval_report):
    for report in (kernel_report, eval_report):
        assert "CPU: not a GPU result" in table.text(report)
    gpu = kernel_report.environment.model_copy(update={"device_type": "cuda", "device": "NVIDIA H200"})
    text = table.text(kernel_report.model_copy(update={"environment": gpu}))
    assert "not a GPU result" not in text
    assert "fk kernels on NVIDIA H200" in text


def test_kernel_rows_say_everything(kernel_report):
    text = table.text(kernel_report)
    assert kernel_report.environment.device in text
    assert "contract host: wall clock" in text
    first = line(text, "tiny-T7-D64-f32").split()
    assert first[:6] == ["tiny-T7-D64-f32", "PASSED", "1.251", "1.241", "..", "1.260"]
    assert "▲" in first
    assert {"27.91", "rms_norm=torch"} <= set(first)
    assert "▼" in line(text, "tiny-T512-D64-f32")
    assert " = " in line(text, "tiny-T8-D64-f32")
    assert "WRONG(value)" in line(text, "tiny-T64-D64-f32")


def test_every_shown_column_has_a_legend_and_empty_ones_vanish(kernel_report):
    text = table.text(kernel_report)
    header = line(text, "case")
    for name in ("speed-up", "95 %", "baseline", "candidate us", "noise %", "roofline %", "error"):
        assert name in header
        assert any(found.startswith(f"{name}: ") for found in text.splitlines())
    assert "capture" not in header
    on_gpu = tuple(
        row.model_copy(update={"capture": "no", "compile": "graph break"}) for row in kernel_report.rows
    )
    text = table.text(kernel_report.model_copy(update={"rows": on_gpu}))
    assert "graph break" in line(text, "tiny-T7-D64-f32")
    assert "compile: " in text


def test_held_out_shapes_are_counted_not_listed(kernel_report):
    text = table.text(kernel_report)
    assert "1 held-out shape checked and passed, not timed" in text
    assert "tiny-T31-D64-f32" not in text


def test_failures_are_below_once_with_place_and_output(kernel_report):
    text = table.text(kernel_report)
    below = text[text.index("Failures") :]
    assert "L1/rms_norm  mine  tiny-T64-D64-f32  (and 1 more)" in below
    assert "at cand/L1/rms_norm.py:17" in below
    assert "relative L2 error 1 against float64" in below
    assert "world" in below
    assert below.count("hello") == 1


def test_figures_do_not_split_a_failure(kernel_report):
    other = kernel_report.rows[-1]
    other = other.model_copy(update={"failure": other.failure.model_copy(update={"message": "error 0.9"})})
    text = table.text(kernel_report.model_copy(update={"rows": (*kernel_report.rows, other)}))
    assert "(and 2 more)" in text
    elsewhere = other.model_copy(update={"failure": other.failure.model_copy(update={"line": 99})})
    text = table.text(kernel_report.model_copy(update={"rows": (*kernel_report.rows, elsewhere)}))
    assert "rms_norm.py:99" in text


def test_each_candidate_has_its_own_mean(kernel_report):
    other = kernel_report.rows[0].model_copy(update={"candidate": "other", "speedup": 2.0})
    text = table.text(kernel_report.model_copy(update={"rows": (*kernel_report.rows, other)}))
    assert line(text, "mine ").split()[-2:] == ["1.001", "3"]
    assert line(text, "other ").split()[-2:] == ["2.000", "1"]


def test_long_output_is_cut_to_its_end(kernel_report):
    noisy = kernel_report.rows[-1].failure.model_copy(
        update={"output": "\n".join(f"line {i}" for i in range(100))}
    )
    rows = (kernel_report.rows[-1].model_copy(update={"failure": noisy}),)
    text = table.text(kernel_report.model_copy(update={"rows": rows}))
    assert "... 80 lines before" in text
    assert "line 99" in text
    assert "line 79\n" not in text


def test_summary_and_shadowed_files(kernel_report):
    text = table.text(kernel_report)
    assert "4 of 6 passed, 2 failed" in text
    assert " ".join(line(text, "mine ").split()) == "mine 4 of 6 1 0.00 0.00 0.00 0.00 1.001 3"
    assert "cand/L1/glu.py is not reached" in text
    assert "processes, home" in text


def test_interruptions_are_marked(kernel_report, eval_report):
    for report in (kernel_report, eval_report):
        assert "INTERRUPTED" not in table.text(report)
        assert "INTERRUPTED" in table.text(report.model_copy(update={"complete": False}))
    empty = eval_report.model_copy(update={"models": (), "macroeval": None, "complete": False})
    assert "INTERRUPTED" in table.text(empty)
    nothing = kernel_report.model_copy(update={"rows": (), "complete": False})
    assert "INTERRUPTED" in table.text(nothing)


def test_notes_and_what_cannot_be_served(kernel_report):
    absent = kernel_report.rows[-1].model_copy(update={
        "case": "*", "candidate": "impl:flashinfer", "verdict": "UNSUPPORTED", "timed": False,
        "failure": Failure(message="flashinfer is not installed"),
    })  # fmt: skip
    text = table.text(kernel_report.model_copy(update={"rows": (absent,), "notes": ("events cost 1.2 us",)}))
    assert "events cost 1.2 us" in text
    assert "UNSUPPORTED  L1/rms_norm  impl:flashinfer  *" in text
    assert "flashinfer is not installed" in text


def test_what_is_noted_of_many_cases_is_one_note(kernel_report):
    notes = [f"L1/glu case-{n}: the candidate cannot be captured: Error: why" for n in range(3)]
    text = table.text(kernel_report.model_copy(update={"notes": (*notes, "events cost 1.2 us")}))
    assert "L1/glu case-0 and 2 more: the candidate cannot be captured: Error: why\n" in text
    assert text.count("cannot be captured") == text.count("\nevents cost 1.2 us\n") == 1


def test_the_legend_is_printed_once_for_several_tasks(kernel_report):
    other = kernel_report.rows[0].model_copy(update={"task": "L1/glu"})
    text = table.text(kernel_report.model_copy(update={"rows": (*kernel_report.rows, other)}))
    assert "L1/glu  mine" in text
    assert text.count("noise %: ") == 1


def test_several_candidates_get_a_column(kernel_report):
    other = kernel_report.rows[0].model_copy(update={"candidate": "impl:triton"})
    text = table.text(kernel_report.model_copy(update={"rows": (*kernel_report.rows, other)}))
    assert "impl:triton" in text
    assert "candidate" in line(text, "case")


def test_eval_tables(eval_report):
    text = table.text(eval_report)
    assert "fk eval on" in text
    assert "mine" in text.splitlines()[0]
    llama = line(text, "llama")
    assert "yes" in llama
    assert "0.90" in llama
    assert "no" in line(text, "other").split()
    assert "MacroEval" in text
    assert f"coverage {eval_report.macroeval.coverage:.4f}" in text
    assert "by throughput alone" in text
    assert "llama: single-request: ratio 20 clipped to 10" in text
    assert "never imported by this model: L1/glu" in text
    assert "clipped" in next(
        found for found in text.splitlines() if "single-request" in found and "10.000" in found
    )
    assert "Vision" in text
    assert "at cand/L1/rms_norm.py:17" in text


def test_a_workload_whose_ratio_is_not_known_is_marked(eval_report):
    llama, *others = eval_report.models
    first, *rest = llama.workloads
    wide = first.model_copy(update={"ratio_ci": (0.5 * first.ratio, 2 * first.ratio)})
    models = (llama.model_copy(update={"workloads": (wide, *rest)}), *others)
    text = table.text(eval_report.model_copy(update={"models": models}))
    (marked,) = [found for found in text.splitlines() if found.endswith("unstable")]
    assert first.name in marked
    assert "unstable: known to more than 5 % only" in text


def test_a_self_test_says_so(eval_report):
    assert "self-test" in table.text(eval_report.model_copy(update={"candidates": ()})).splitlines()[0]


def test_pipes_are_never_cut():
    wide = "x" * 500
    assert wide in plain([grid([Column("name", "")], [[wide]])])


def test_terminals_fold_and_pipes_do_not(kernel_report):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    pipe, terminal = io.StringIO(), Terminal()
    table.show(kernel_report, pipe, verbose=True)
    table.show(kernel_report, terminal)
    assert pipe.getvalue() == table.text(kernel_report)
    assert "\x1b" not in pipe.getvalue()
    assert "mine" in terminal.getvalue()


def test_tables_fit_a_hundred_columns_and_say_what_found_no_room(kernel_report, eval_report):
    name = "L1/rms_norm" + "x" * 20
    rows = [row.model_copy(update={"case": f"{row.case}-{name}"}) for row in kernel_report.rows]
    for report in (kernel_report.model_copy(update={"rows": tuple(rows)}), eval_report):
        pipe, whole = io.StringIO(), io.StringIO()
        table.show(report, pipe)
        table.show(report, whole, verbose=True)
        tabular = [
            said for said in pipe.getvalue().splitlines() if " .. " in said or said.startswith("model ")
        ]
        assert tabular
        assert max(map(len, tabular)) <= 100 < max(map(len, whole.getvalue().splitlines()))
        [told] = [said for said in pipe.getvalue().splitlines() if said.startswith("no room for: ")]
        assert "--verbose" in told
        assert "no room for" not in whole.getvalue()
        first = told.removeprefix("no room for: ").split(",")[0]
        assert f"\n{first}: " in whole.getvalue()
        assert f"\n{first}: " not in pipe.getvalue()


def mixed(report):
    """Two of the rows could not be captured; nothing was claimed of the second, which waits."""
    graph = [row.model_copy(update={"contract": "graph"}) for row in report.rows]
    eager = {"contract": "eager", "speedup": 3.0, "speedup_ci": (2.9, 3.1)}
    other = [
        graph[0].model_copy(update={"case": "other-T7", **eager}),
        graph[0].model_copy(update={"case": "other-T9", **eager, "significant": None}),
    ]
    return report.model_copy(update={"rows": (graph[0], other[0], *graph[1:], other[1])})


def test_two_contracts_share_no_table_and_no_mean(kernel_report):
    text = table.text(mixed(kernel_report))
    graph, eager = text.split("\nL1/rms_norm · contract ")[1:]
    assert graph.startswith("graph  mine")
    assert eager.startswith("eager  mine")
    assert "other-T7" not in graph
    assert "tiny-T7" not in eager.split("speed-up:")[0]
    assert "1 held-out shape" in graph
    assert line(text, "mine · contract graph").split()[-2:] == ["1.001", "3"]
    assert line(text, "mine · contract eager").split()[-2:] == ["3.000", "2"]
    assert " · contract " not in table.text(kernel_report), "one needs no name"


def test_a_ratio_of_which_nothing_is_claimed_is_marked(kernel_report):
    text = table.text(mixed(kernel_report))
    assert "?" in line(text, "other-T9").split()
    assert "? nothing is claimed: the call waits" in text
    assert "nothing is claimed" not in table.text(kernel_report)


def test_why_compile_says_what_it_says_is_noted_once(kernel_report):
    update = {"compile": "graph break", "compile_detail": "inside L3/layer: Data-dependent branching"}
    rows = tuple(row.model_copy(update=update) for row in kernel_report.rows)
    text = table.text(kernel_report.model_copy(update={"rows": rows}))
    below = text[text.index("Notes") :]
    assert "torch.compile of mine, L1/rms_norm: graph break: inside L3/layer: Data-dependent" in below
    assert text.count("Data-dependent branching") == 1
