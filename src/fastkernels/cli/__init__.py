"""`fk`: a verb for each module of this package. Naming a verb imports it; `fk --help` imports none.

Results go to stdout, progress and errors to stderr. Exit codes: 0 good, 1 a candidate failed or a gate was
missed, 2 usage, 3 this machine cannot do it or results are unstable, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from fastkernels import __version__, interrupts
from fastkernels.errors import FastKernelsError, NotFoundError, UsageError

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
VERBS = {
    "list": "What exists: tasks, architectures, workloads, candidates.",
    "show": "One task or architecture: contract, cases, implementations, users.",
    "kernels": "Judge candidate kernels, one task at a time.",
    "eval": "Judge candidates inside whole models; MacroEval.",
    "gate": "For CI: is a candidate right, and no slower than its base?",
    "e2e": "Serve one model: throughput and latency, as vllm bench measures.",
    "serve": "Serve one model over HTTP, as OpenAI's API does.",
    "profile": "What limits a task's case, and where a model's time goes.",
    "tune": "Measure all implementations here, write which one is used.",
    "stubs": "Write candidate files with the right names and signatures.",
    "capture": "Record what a model's routers choose; compare it with drawn routing.",
    "audit": "Check the tasks: wrong kernels must fail, right ones pass.",
    "check": "Look over candidate files without running them.",
    "merge": "Join reports of fk kernels that are parts of one run.",
    "score": "Recompute MacroEval from report files.",
    "report": "Reports as a page, a leaderboard, or what moved between two.",
    "history": "Versions of candidates: parents, results, trends, the best.",
    "ui": "MLflow's page on what was logged.",
    "schema": "Print the JSON Schema of a report.",
    "doctor": "This machine: what works, what does not, how to get it.",
}


class LazyGroup(click.Group):
    """Verbs by name: verb V is `command` of the module fastkernels.cli.V."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS]  # not list(): the verb's module takes that name here once it is imported

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        return importlib.import_module(f"fastkernels.cli.{cmd_name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, VERBS[verb]) for verb in self.list_commands(ctx)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise NotFoundError("command", args[0], self.list_commands(ctx), "fk --help")
        return super().resolve_command(ctx, args)

    def main(
        self, args: Sequence[str] | None = None, *rest: Any, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        """Run a verb and exit with its code; the user's and the machine's errors have no traceback."""
        if not standalone_mode:
            return super().main(args, *rest, standalone_mode=False, **extra)
        if hasattr(sys.stdout, "reconfigure"):
            # A candidate may say what the terminal's encoding lacks, and a table has arrows.
            sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
        try:
            with interrupts.heeded(last=args is None):
                code = super().main(args, *rest, standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except FastKernelsError as error:
            click.echo(f"error: {error}", err=True)
            code = error.exit_code
        except PermissionError as error:
            # Any verb may meet one, wherever it looks at a path.
            advice = "Change its permissions, or name another path"
            click.echo(f"error: {error.filename}: {error.strerror}. {advice}", err=True)
            code = UsageError.exit_code
        except (KeyboardInterrupt, click.Abort):
            click.echo("interrupted", err=True)
            code = INTERRUPTED
        except BrokenPipeError:
            # The reader has all it wanted (`fk list | head`). Python would complain again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 1  # as click has it where a verb meets the closed pipe itself
        sys.exit(code if isinstance(code, int) else 0)


@click.group(cls=LazyGroup, epilog="Example: fk kernels --target rms_norm")
@click.version_option(__version__, prog_name="fk")
def main() -> None:
    """FastKernels: judge GPU kernels alone and inside the models that use them.

    Exit codes: 0 good, 1 a candidate failed, a gate was missed or an audit refused something, 2 usage, 3 this
    machine cannot do it or results are unstable, 130 interrupted.
    """
