"""The group: lazy verbs, exit codes, no traceback for what is not our bug."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fastkernels import cli
from fastkernels.errors import BaselineError, FastKernelsError, MachineError, UsageError

SOURCE = Path(cli.__file__).parent


def fresh(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`fk ARGUMENTS` in a new interpreter, which then prints the names of all modules that it imported."""
    program = (
        "import sys\nfrom fastkernels.cli import main\n"
        f"try:\n    main({list(arguments)!r}, prog_name='fk')\n"
        "except SystemExit as end:\n    print('exit', end.code, file=sys.stderr)\n"
        "print(' '.join(sys.modules), file=sys.stderr)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=SOURCE.parents[2],
    )


def modules(*arguments: str) -> set[str]:
    done = fresh(*arguments)
    lines = done.stderr.splitlines()
    assert lines[-2].startswith("exit 0"), done.stderr
    return set(lines[-1].split())


def test_help_imports_neither_torch_nor_pydantic_nor_a_verb() -> None:
    loaded = modules("--help")
    assert not loaded & {"torch", "pydantic", "rich", "yaml", "numpy"}
    assert {name for name in loaded if name.startswith("fastkernels.cli")} == {"fastkernels.cli"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["list", "architectures", "--map"],
        ["list", "workloads"],
        ["show", "L3/decoder_layer"],
        ["show", "llama", "--json", "-"],
        *([verb, "--help"] for verb in cli.VERBS),
    ],
    ids=" ".join,
)
def test_looking_imports_no_torch(arguments: list[str]) -> None:
    assert "torch" not in modules(*arguments)


def test_check_imports_no_torch(tmp_path: Path) -> None:
    file = tmp_path / "L1" / "rms_norm.py"
    file.parent.mkdir()
    file.write_text("from fastkernels.baseline.L1.rms_norm import RMSNorm\n")
    assert "torch" not in modules("check", str(tmp_path))


def test_listed_verbs_exist_and_say_how_they_are_used() -> None:
    group = cli.main
    context = click.Context(group)
    verbs = group.list_commands(context)
    assert {"list", "show", "kernels", "eval", "doctor"} <= set(verbs)
    for verb in verbs:
        command = group.get_command(context, verb)
        assert command is not None
        text = command.get_help(click.Context(command, info_name=f"fk {verb}"))
        assert "Example" in text, verb
        assert command.help, verb


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["schema", "evel"], "Did you mean eval?"),
        (["eval", "--suite", "ful"], "'default', 'full'. Did you mean full?"),
        (["kernels", "--contract", "grph"], "Did you mean graph?"),
        (["kernels", "--device", "gpu"], "'gpu' is not one of 'cpu', 'cuda'.\n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_word_is_answered_with_the_nearest(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(cli.main, arguments)
    assert (result.exit_code, told in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FastKernelsError("x"), 1),
        (UsageError("x"), 2),
        (MachineError("x"), 3),
        (BaselineError("x"), 3),
        (KeyboardInterrupt(), 130),
        (click.UsageError("x"), 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int) -> None:
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: failing)
    result = CliRunner().invoke(cli.main, ["failing"])
    assert result.exit_code == code
    if isinstance(error, FastKernelsError):
        assert result.stderr == "error: x\n"
        assert result.stdout == ""


def test_the_exit_code_of_a_verb_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def three() -> None:
        raise SystemExit(3)

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: three)
    assert CliRunner().invoke(cli.main, ["three"]).exit_code == 3


def test_our_own_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def buggy() -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: buggy)
    assert isinstance(CliRunner().invoke(cli.main, ["buggy"]).exception, RuntimeError)


def test_a_path_without_permission_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def forbidden() -> None:
        raise PermissionError(13, "Permission denied", "/secret/L1")

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: forbidden)
    result = CliRunner().invoke(cli.main, ["forbidden"])
    told = "error: /secret/L1: Permission denied. Change its permissions, or name another path\n"
    assert (result.exit_code, result.stderr) == (2, told)


@pytest.mark.parametrize(
    "arguments",
    [
        ("kernels", "--self-test", "--device", "cpu"),
        ("audit", "--device", "cpu"),
        ("tune", "--device", "cpu"),
        ("stubs",),
    ],
    ids=" ".join,
)
def test_filters_that_leave_no_task_are_all_named(arguments, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([*arguments, "--target", "rms_norm", "--architecture", "yolov10"])
    assert end.value.code == 2
    told = (
        "No task matches --target rms_norm --architecture yolov10. See: fk list tasks --architecture yolov10"
    )
    assert told in capsys.readouterr().err


def test_fk_tune_asks_whether_its_table_can_be_written_before_it_measures(tmp_path, capsys) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as end:
        cli.main(["tune", "--target", "rms_norm", "--out", str(tmp_path / "file" / "table.yaml")])
    assert end.value.code == 2
    assert f"nothing can be written into {tmp_path / 'file'}" in capsys.readouterr().err


def test_an_unknown_verb_has_near_names() -> None:
    result = CliRunner().invoke(cli.main, ["lits"])
    assert result.exit_code == 2
    assert "Did you mean list" in result.stderr


def test_words_that_the_terminal_lacks_are_shown_as_escapes(monkeypatch) -> None:
    @click.command()
    def arrows() -> None:
        sys.stdout.write("\u25b2 caf\u00e9\n")

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: arrows)
    result = CliRunner(charset="ascii").invoke(cli.main, ["arrows"])
    assert (result.exit_code, result.stdout) == (0, "\\u25b2 caf\\xe9\n")


@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("again", [None, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whoever_is_ended_is_interrupted_and_tidies_up(monkeypatch, number: int, again: int | None) -> None:
    @click.command()
    def ends() -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            if again is not None:
                signal.raise_signal(again)
            click.echo("tidied up")
            raise

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: ends)
    before = signal.getsignal(number)
    result = CliRunner().invoke(cli.main, ["ends"])
    assert (result.exit_code, result.stdout) == (cli.INTERRUPTED, "tidied up\n")
    assert signal.getsignal(number) == before


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m fastkernels show L4/llama --json - | head -c 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert done.stdout == "{"


def test_module_entry() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fastkernels", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("fk, version ")


@pytest.mark.parametrize(
    ("verb", "flag"),
    [
        ("kernels", "--json"),
        ("eval", "--json"),
        ("audit", "--json"),
        ("gate", "--junit"),
        ("gate", "--markdown"),
        ("capture", "--plot"),
        ("e2e latency", "--json"),
        ("e2e throughput", "--json"),
    ],
)
def test_a_report_that_cannot_be_written_is_told_before_anything_is_measured(verb, flag, tmp_path, capsys):
    """Nothing of the request was looked at yet: its candidates do not exist."""
    arguments = ["no/such/candidate"] if verb == "gate" else []
    with pytest.raises(SystemExit) as end:
        cli.main([*verb.split(), *arguments, flag, str(tmp_path)])
    assert end.value.code == 2
    assert f"{flag} '{tmp_path}': name a file, or - for stdout" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("gate", "mine", "--max-regression", "nan"),
        ("gate", "mine", "--min-speedup", "nan"),
        ("kernels", "--budget", "inf"),
        ("score", "report.json", "--lambda", "nan"),
    ],
)
def test_a_limit_is_a_number(arguments: tuple[str, ...]) -> None:
    """Nothing is ever beyond nan."""
    done = fresh(*arguments)
    assert "\nexit 2\n" in done.stderr
    assert "is no finite number" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("gate", "mine", "--junit", "x.md", "--markdown", "./x.md"),
            "--junit and --markdown both write ./x.md",
        ),
        (("gate", "mine", "--json", "-", "--junit", "-"), "--json and --junit both write -"),
        (("kernels", "--case", "T1", "--case", "T8"), "--case is given 2 times, and narrows to one"),
        (("stubs", "--architecture", "llama", "--architecture", "gla"), "--architecture is given 2 times"),
        (("tune", "--from", "x.json", "--budget", "2"), "--budget: --from measures nothing"),
        (("list", "workloads", "--level", "1"), "--level: narrows nothing in a list of workloads"),
        (("list", "tasks", "--candidates", "mine"), "--candidates: narrows nothing in a list of tasks"),
        (("audit", "--seed", str(2**64)), "is not in the range"),
        (("list", "task"), "No kind of list 'task'. Did you mean tasks?"),
    ],
)
def test_options_that_make_no_sense(arguments: tuple[str, ...], told: str) -> None:
    done = fresh(*arguments)
    assert "\nexit 2\n" in done.stderr
    assert told in done.stderr


def test_where_a_report_goes_is_looked_at_before_the_run() -> None:
    done = fresh("gate", "mine", "--junit", f"{__file__}/gate.xml")
    assert "\nexit 2\n" in done.stderr
    assert f"--junit {__file__}/gate.xml: nothing can be written into {__file__}" in done.stderr


def test_fk_check_takes_candidates_as_other_commands_do(tmp_path: Path) -> None:
    (tmp_path / "L1").mkdir()
    (tmp_path / "L1" / "rms_norm.py").write_text("class RMSNorm(:\n")
    for given in (["--candidates", str(tmp_path)], [str(tmp_path)]):
        found = CliRunner().invoke(cli.main, ["check", *given])
        assert found.exit_code == 1
        assert "rms_norm.py:1: error" in found.stdout
