"""report/page.py and html.py: what a page of each kind of report shows, and that it needs nothing beside
itself."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import pytest

from fastkernels import cli
from fastkernels.records import AuditReport, AuditRow, CandidateFiles
from fastkernels.report import commands, document, html, json, layout, markdown, page
from fastkernels.report.comparison import compare
from tests.unit.report.conftest import failed, row
from tests.unit.report.test_gate_report import EVIL, a_gate

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
VOID = {"meta", "link", "br", "hr", "img", "input"}
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None
)


class Page(HTMLParser):
    """What a page holds. Fails where a tag is closed that is not open, or stays open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> at line {self.getpos()[0]}"

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def everything(kernel_report, eval_report) -> dict[str, document.Document]:
    skewed = [row(f"moe-T8{skew}-f32", task="L2/experts") for skew in ("", "-zipf", "-captured")]
    rows = (*kernel_report.rows, *skewed)
    kernels = kernel_report.model_copy(update={"rows": rows})
    evil = kernels.model_copy(update={"rows": (rows[0].model_copy(update={"candidate": EVIL}), *rows[1:])})
    changed = kernels.model_copy(update={"rows": (failed(rows[0].case), *rows[1:3])})
    refused = AuditRow(
        task="L1/rope",
        variant="default",
        case="c",
        rule="values",
        admitted=False,
        margin=2.0,
        draws=7,
        checks=(),
    )
    audit = AuditReport(
        environment=kernels.environment, request={}, tasks=(), rows=(refused,), wall_s=1.0, unaudited=("x",)
    )
    return {
        "audit": page.of([("a.json", audit)]),
        "kernels": page.of([("runs/k.json", kernels)]),
        "eval": page.of([("runs/e.json", eval_report)]),
        "gate": page.of([("g.json", a_gate())]),
        "several": page.of([("runs/k.json", kernels), ("runs/e.json", eval_report), ("runs/x.json", evil)]),
        "compared": page.of_comparison(
            ("a.json", kernels), ("b.json", changed), compare(kernels, changed)
        ),
    }  # fmt: skip


def test_a_page_needs_nothing_beside_itself_and_is_reachable(everything):
    for name, found in everything.items():
        text = html.text(found)
        seen = Page(text)
        assert not re.findall(r"(?i)https?://|<script|javascript:|@import|url\(|\son\w+=", text), name
        links = [a["href"] or "" for a in seen.of("a")]
        anchors = {attributes["id"] for _, attributes in seen.tags if attributes.get("id")}
        assert {link.removeprefix("#") for link in links} <= anchors, name
        assert len(links) > 2, name
        assert len(seen.of("h1")) == len(seen.of("main")) == 1
        assert all(one["tabindex"] == "0" and one["aria-label"] for one in seen.of("div") if "role" in one)
        tables = text.count("<table>")
        assert tables == text.count("<caption>") == text.count("<thead>"), name
        assert all(th["scope"] in ("col", "row") for th in seen.of("th"))
        assert "prefers-color-scheme: dark" in text
        for table in re.findall(r"<table>.*?</table>", text, re.DOTALL):
            columns = table.count('scope="col"')
            rows = re.findall(r"<tr>.*?</tr>", table, re.DOTALL)
            assert {len(re.findall(r"<t[hd][ >]", one)) for one in rows} == {columns}, name


def test_words_of_a_candidate_are_words(everything):
    text = html.text(everything["several"])
    assert "&lt;script&gt;|`x`| @everyone" in text
    assert Page(text)
    told = markdown.text(everything["several"])
    assert "<script>" not in told
    assert "@everyone" not in told


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_contrast(scheme):
    """WCAG 2.2: 4.5 for text, 3 for what is drawn."""
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    colours = {name: both[scheme] for name, both in html.PALETTE.items()}
    for name, ground in product(("text", "quiet", "link", "good", "bad", "warn"), ("page", "panel")):
        assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    assert contrast(colours["same"], colours["panel"]) >= 3


def words(found: document.Document) -> str:
    return " ".join(" ".join(Page(html.text(found)).words).split())


def test_a_page_of_kernels_has_gains_roofline_noise_routing_and_failures(everything, kernel_report):
    text, told = html.text(everything["kernels"]), words(everything["kernels"])
    titles = [section.title for section in everything["kernels"].sections]
    assert titles == [
        "Candidates", "Kernels by gain x share of calls", "Roofline", "Noise", "Routing skew", "Failures",
        "Notes", "Rows", "Environment",
    ]  # fmt: skip
    assert "CPU: not a GPU result" in told
    assert "6 cases reach 61 to 61 % of the roofline" in told
    assert text.count("<title>L1/rms_norm tiny-T7-D64-f32, mine: ") == 2, "a point of each chart"
    assert "moe-T8-f32 mine 22.3 22.3 22.3 1.000 1.000" in told
    assert "WRONG(value) L1/rms_norm mine tiny-T64-D64-f32 (and 1 more)" in told
    assert "fk kernels --target L1/rms_norm --case tiny-T64-D64-f32" in told
    assert kernel_report.environment.device in told
    gains = everything["kernels"].sections[1].blocks[0]
    assert isinstance(gains, document.Grid)
    assert [cells[0] for cells in gains.rows] == ["L2/experts", "L1/rms_norm"], "the largest gain first"


def test_a_page_of_models_has_a_bar_for_each_by_category_and_the_transfer(everything, eval_report):
    told = words(everything["eval"])
    assert f"MacroEval {eval_report.macroeval.score:.4f}" in told
    partial = eval_report.model_copy(
        update={"unevaluated": {"gla": "no room"}, "skipped": {"flux": "no need"}}
    )
    left = words(page.of([("e.json", partial)]))
    assert "Not evaluated gla: no room Skipped: no part of the score flux: no need" in left
    text = html.text(everything["eval"])
    assert text.count('<svg class="bars"') == 1, "a model that is not valid has no speed-up to draw"
    assert text.count('class="mean"') == 1
    assert "L1/rms_norm 7 91 100.0 0.90" in told
    assert "fk eval --model other --size tiny --candidates" in told
    assert "Vision other tiny no" in told


def test_a_page_says_which_baselines_were_weaker(kernel_report, eval_report):
    rows = tuple(row.model_copy(update={"absent": ("FlashAttention-3",)}) for row in kernel_report.rows)
    weaker = kernel_report.model_copy(update={"rows": rows})
    found = words(page.of([("k.json", weaker)]))
    assert "L1/rms_norm: 4 of 6 passed, baseline without FlashAttention-3" in found
    models = tuple(model.model_copy(update={"absent": ("FBGEMM",)}) for model in eval_report.models)
    found = words(page.of([("e.json", eval_report.model_copy(update={"models": models}))]))
    assert "llama: baseline without FBGEMM other: baseline without FBGEMM" in found


def test_several_reports_stand_beside_each_other_by_kind_and_device(everything):
    titles = [section.title for section in everything["several"].sections if section.level == 2]
    assert [title.partition(" on ")[0] for title in titles] == [
        "Leaderboard: fk eval", "Leaderboard: fk kernels", "k", "e", "x",
    ]  # fmt: skip
    assert "Over different cases: these means stand beside each other" in words(everything["several"])


def test_a_comparison_names_what_moved_first(everything):
    sections = {section.title: section for section in everything["compared"].sections}
    assert next(iter(sections)) == "Compared: 1 broken, 2 same"
    assert "tiny-T7-D64-f32 broken 1.251 WRONG(value)" in words(everything["compared"])
    for told in (document.parts(everything["compared"]), markdown.text(everything["compared"])):
        assert told


def test_markdown_fits_a_comment_and_counts_what_does_not(kernel_report):
    many = tuple(row(f"c{n}-{'x' * 60}", task=f"L1/t{n % 40}") for n in range(4000))
    text = markdown.text(page.of([("k.json", kernel_report.model_copy(update={"rows": many}))]))
    assert len(text) <= markdown.MAX_CHARACTERS
    assert re.search(r"and \d+ more rows: see the JSON report", text)
    assert text.count("<details>") == text.count("</details>") > 0


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*/eval_*self_test.json"))[:3], ids=lambda p: p.stem)
def test_reports_from_machines_have_pages(path):
    assert Page(html.text(page.of([(str(path), json.load(path))])))


# ---------------------------------------------------------------- commands


def accepted(line: str) -> None:
    """As the shell and `fk` take it apart; nothing is run."""
    program, verb, *rest = shlex.split(line)
    assert program == "fk"
    command = cli.main.get_command(cli.main.make_context("fk", ["--help"], resilient_parsing=True), verb)
    assert command is not None
    command.make_context(verb, rest)


def test_proposed_commands_are_such_as_fk_takes(kernel_report, eval_report, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = "my folder/mine"
    asked = {"candidates": [folder], "size": "tiny", "device": "cpu", "seed": 3, "contract": "host"}
    kernels = kernel_report.model_copy(update={"request": asked})
    wrong = commands.of_row(kernels, failed("c"))
    assert "--candidates 'my folder/mine' --reproduce failures --size tiny" in wrong
    assert commands.following(kernels) == wrong.replace(" c ", " tiny-T64-D64-f32 ")
    judged = [CandidateFiles(name=n, folders=(f"my folder/{n}",), sha256="0") for n in ("worse", "mine")]
    rows = (row("a", candidate="worse", speedup=0.5), row("a"))
    right = kernels.model_copy(update={"rows": rows, "candidates": tuple(judged)})
    models = eval_report.model_copy(update={"candidates": (f"{folder}/L1/rms_norm.py",)})
    valid = models.model_copy(update={"models": (_known(models.models[0]),)})
    lines = {
        "wrong": wrong,
        "implementation": commands.of_row(kernels, row("a", candidate="impl:triton")),
        "self-test": commands.of_row(kernels.model_copy(update={"request": {"self_test": True}}), row("a")),
        "after kernels": commands.following(right),
        "after an invalid model": commands.following(models),
        "after valid ones": commands.following(valid),
        "after a gate": commands.following(a_gate()),
        "model": commands.of_model(models, models.models[0]),
        "on ranks": commands.of_model(
            models.model_copy(update={"request": {**models.request, "tp": 2, "ep": 1}}), models.models[0]
        ),
    }
    for name, line in lines.items():
        assert line is not None, name
        accepted(line)
    assert lines["after kernels"].startswith("fk eval --model ")
    assert lines["after kernels"].endswith("mine'"), "the best of them goes on"
    assert commands.following(right.model_copy(update={"complete": False})) is None
    fast = {"complete": False, "request": {**asked, "fail_fast": True}}
    assert commands.following(kernels.model_copy(update=fast)) == commands.following(kernels)
    assert "--tp 2" in lines["on ranks"], "the same group of ranks"
    assert "--ep" not in lines["on ranks"], "one is the default"
    assert lines["after valid ones"] == "fk gate 'my folder/mine' --base origin/main"
    self_test = kernels.model_copy(update={"rows": (row("a"),), "request": {"self_test": True}})
    assert commands.following(self_test) is None


def _known(model):
    workloads = [w.model_copy(update={"ratio_ci": (w.ratio, w.ratio)}) for w in model.workloads]
    return model.model_copy(update={"workloads": tuple(workloads)})


# ---------------------------------------------------------------- as a user


def test_bad_input_of_fk_report_is_named_with_the_next_step(kernel_report, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    json.write(kernel_report, "good.json")
    text = Path("good.json").read_text()
    Path("empty.json").write_text("")
    Path("cut.json.gz").write_bytes(b"\x1f\x8b\x08\x00")
    Path("later.json").write_text(text.replace('"schema": 1', '"schema": 2'))
    Path("other.json").write_text(text.replace('"kind": "kernels"', '"kind": "parity"'))
    Path("h200.json").write_text(text.replace(kernel_report.environment.device, "NVIDIA H200"))
    for words_of, told in (
        ("empty.json", "empty.json: empty: .* Name a report that `fk` wrote"),
        ("cut.json.gz", "not compressed by gzip, or cut off. Name a report"),
        ("later.json", "line 3: a report of schema 2; .* make it again"),
        ("other.json", "not 'parity'. .* tables of docs/benchmarks.md"),
        ("none.json", "No such file or directory. Name a report"),
        ("--compare good.json h200.json", "two devices do not compare. .* --force"),
        ("good.json --html .", "name a file"),
        ("good.json --html good.json/page.html", "nothing can be written .* Name another place"),
        ("good.json --compare good.json good.json", "Name the reports to show"),
        ("", "Name the reports to show"),
        ("good.json --force", "--force: is about two reports"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(["report", *words_of.split()])
        assert ended.value.code == 2, words_of
        assert re.search(told, capsys.readouterr().err), words_of


def test_fk_report_writes_a_page_and_a_comment_or_shows_a_table(kernel_report, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    json.write(kernel_report, "a.json")
    for words_of in ("a.json", "a.json a.json", "--compare a.json a.json"):
        with pytest.raises(SystemExit) as ended:
            cli.main(["report", *words_of.split()])
        assert ended.value.code == 0
        assert "fk kernels" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["report", "a.json", "--html", "page.html", "--markdown", "-"])
    said = capsys.readouterr()
    assert said.out.startswith("### fk kernels on")
    assert said.err == "page  page.html\n"
    assert Page(Path("page.html").read_text()).of("h1")


FRAME = """<iframe src="{page}" style="width: {width}px; height: 900px; border: 0"></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = () => {{
  const page = frame.contentDocument.documentElement;
  document.title = page.clientWidth > {width} - 50 && page.scrollWidth <= page.clientWidth;
}};</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium-headless-shell")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_has_nothing_to_say_and_no_page_is_wider_than_its_window(everything, width, tmp_path):
    for name in ("kernels", "several"):
        place, frame = tmp_path / f"{name}.html", tmp_path / f"{name}_frame.html"
        place.write_text(html.text(everything[name]))
        frame.write_text(FRAME.format(page=place.name, width=width))
        command = [CHROMIUM, "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
        command += ["--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}"]
        done = subprocess.run(
            [*command, frame.as_uri()], capture_output=True, text=True, check=True, timeout=120
        )
        assert "CONSOLE" not in done.stderr
        assert "<title>true</title>" in done.stdout


def test_columns_without_room_are_named_on_a_terminal() -> None:
    columns = (layout.Column("name", ""), layout.more("wide", ""))
    found = document.Document(
        "title", [], [document.Section("one", [document.Grid("g", columns, [["a", "b" * 90]])])]
    )
    narrow, whole = (layout.plain(document.parts(found, room)) for room in (60, None))
    assert "b" * 90 in whole
    assert "b" * 90 not in narrow
    assert "no room for: wide" in narrow
