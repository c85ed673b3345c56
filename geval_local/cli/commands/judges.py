"""``geval-local judges``: list, check and fetch judges."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options
from geval_local.cli.commands.judges_check import check
from geval_local.cli.output.console import note, print_json, show_text

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_judges(models: options.ModelsFile = None, as_json: options.Json = False) -> None:
    """List the judges by the memory that their weights need, and whether their files are on this machine."""
    from geval_local.cli.output.judges import files_gb, show_registry
    from geval_local.models.registry import load_registry, local_directory

    registry = load_registry(models)
    present = {name: local_directory(entry) is not None for name, entry in registry.judges.items()}
    files = {name: files_gb(entry) for name, entry in registry.judges.items()}
    if as_json:
        records = [
            entry.model_dump(mode="json")
            | {"default": name == registry.default, "present": present[name], "files_gb": files[name]}
            for name, entry in registry.judges.items()
        ]
        print_json(records)
        return
    show_registry(registry, present, files)
    if any(entry.unconfirmed for entry in registry.judges.values()):
        note("?: no source confirms it")
    note("memory is that of the weights alone, as they are stored; on a CPU about 1.5 GB come with it")
    note("next: geval-local judges check NAME, or geval-local judges fetch NAME")


app.command()(check)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `judges list`, or a hub id.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="A directory to carry to another machine.")
    ] = None,
    models: options.ModelsFile = None,
) -> None:
    """Download a judge's safetensors, configuration and tokenizer; the only verb that uses the network."""
    from geval_local.models.fetch import entry_to_fetch
    from geval_local.models.fetch import fetch as download
    from geval_local.models.registry import load_registry

    directory = download(entry_to_fetch(name, models), output)
    show_text(str(directory))
    listed = output is None and name in load_registry(models).judges
    note(f"next: geval-local judges check {name if listed else directory}")
