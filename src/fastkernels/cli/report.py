"""`fk report`: reports as a page, as Markdown, or on the terminal."""

from __future__ import annotations

import sys

import click

from fastkernels.cli import options
from fastkernels.errors import UsageError


@click.command(
    epilog="Examples: fk report run.json --html run.html · fk report --compare before.json after.json "
    "--markdown moved.md"
)
@click.argument("results", nargs=-1, metavar="RESULT...")
@click.option(
    "--compare",
    nargs=2,
    metavar="A B",
    help="In place of RESULT...: what moved from report A to report B, beyond the noise of both.",
)
@click.option("--force", is_flag=True, help="With --compare: also reports of two devices.")
@options.written(
    "--html", "html_path", text="Write one page that needs nothing beside itself; `-` is stdout."
)
@options.written("--markdown", "markdown_path", text="Write a comment for a pull request; `-` is stdout.")
@options.verbose
def command(
    results: tuple[str, ...],
    compare: tuple[str, str] | None,
    force: bool,
    html_path: str | None,
    markdown_path: str | None,
    verbose: bool,
) -> None:
    """Show reports of `fk kernels`, `fk eval`, `fk gate` and `fk audit`: one whole, several as a leaderboard
    for each device, or two beside each other.

    Without --html and --markdown, on the terminal. A report of `fk tune` is shown there, alone.
    """
    if bool(results) == (compare is not None):
        raise UsageError("Name the reports to show (fk report RESULT...), or two to compare (--compare A B)")
    if force and compare is None:
        raise UsageError("--force: is about two reports that --compare holds beside each other")
    from fastkernels.cli import tune
    from fastkernels.records import TuneReport
    from fastkernels.report import document, files, json, layout, page, table

    if len(results) == 1 and not (html_path or markdown_path):
        (path,) = results
        report = json.load_shown(path)
        if isinstance(report, TuneReport):
            tune.tell(report, click.echo)
            click.echo(f"\nA table from it: fk tune --from {path} --out TABLE.yaml")
        else:
            table.show(report, sys.stdout, verbose)
        return
    reports = [(path, json.load(path)) for path in compare or results]
    if compare is None:
        found = page.of(reports)
    else:
        from fastkernels.report.comparison import compare as compared

        before, after = reports
        found = page.of_comparison(before, after, compared(before[1], after[1], force))
    if html_path:
        from fastkernels.report import html

        files.write(html.text(found), html_path, "--html")
        _say("page", html_path)
    if markdown_path:
        from fastkernels.report import markdown

        files.write(markdown.text(found), markdown_path, "--markdown")
        _say("comment", markdown_path)
    if html_path or markdown_path:
        return
    layout.show(document.parts(found, None if verbose else layout.room(sys.stdout)), sys.stdout)


def _say(what: str, path: str) -> None:
    """Where it is; on stderr, since the other one may be on stdout."""
    if path != "-":
        click.echo(f"{what}  {path}", err=True)
