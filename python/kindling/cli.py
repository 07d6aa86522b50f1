"""The command `kindling`. It calls the public package only."""

from __future__ import annotations

import json
from typing import Annotated

import typer

import kindling
from kindling._plan_command import plan

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="KL distillation of a lightning indexer on the CPU.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kindling {kindling.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


@app.command()
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the processor, the instruction sets and the threads that operators use."""
    facts = {"version": kindling.__version__, **kindling.cpu_info()}
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return

    # Here and not above: rich takes longer to import than the package.
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in facts.items():
        text = ", ".join(value) if isinstance(value, list) else str(value)
        table.add_row(name.replace("_", " "), text)
    Console().print(table)


app.command()(plan)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
