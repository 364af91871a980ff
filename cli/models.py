"""`baton models`: the checkpoints that are on this machine, and what the cluster has."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.api import NodeUnreachable, api_option, connect, get
from node.config import default_models_dir
from node.models import BUNDLED_MODEL, ModelStore

__all__ = ["models"]

_BUNDLED_ALIAS: Final = "smollm2"

models_dir_option = click.option(
    "--models-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=default_models_dir,
    help="Where checkpoints are.  [default: BATON_MODELS, or ~/.cache/baton/models]",
)


class _LocalModel(msgspec.Struct):
    name: str
    path: str
    architecture: str
    bytes: int


class _Notes(msgspec.Struct):
    base_model: str = ""
    ready: bool = False
    loaded: bool = True


class _ClusterModel(msgspec.Struct):
    id: str
    x_baton: _Notes = msgspec.field(default_factory=_Notes)


class _ClusterModels(msgspec.Struct):
    data: list[_ClusterModel] = []


class _Listing(msgspec.Struct):
    models_dir: str
    local: list[_LocalModel]
    cluster: list[_ClusterModel] | None
    """None when no node answers."""


class _CheckpointConfig(msgspec.Struct):
    model_type: str = ""


@click.group(invoke_without_command=True)
@click.pass_context
def models(context: click.Context) -> None:
    """List, add and remove models."""
    if context.invoked_subcommand is None:
        context.invoke(list_models)


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@models_dir_option
@api_option
def list_models(models_dir: Path, api: str, as_json: bool) -> None:
    """List what is on this machine, and what the cluster has loaded or on disk."""
    listing = _Listing(str(models_dir), _local_models(ModelStore(models_dir)), _cluster_models(api))
    if as_json:
        click.echo(msgspec.json.encode(listing).decode())
        return
    console = Console()
    local = Table("name", "architecture", "size", title=Text(f"In {models_dir}"))
    for each in listing.local:
        local.add_row(Text(each.name), Text(each.architecture), f"{each.bytes / 1e9:.2f} GB")
    console.print(local if listing.local else Text(f"No models in {models_dir}."))
    if listing.cluster is None:
        console.print(f"No Baton node answers at {api}: nothing to say about the cluster.")
        return
    cluster = Table("name", "base model", "state", title="In the cluster")
    for each in listing.cluster:
        notes = each.x_baton
        state = "ready" if notes.ready else "not ready" if notes.loaded else "on disk"
        cluster.add_row(Text(each.id), Text(each.x_baton.base_model), state)
    console.print(cluster if listing.cluster else "No models in the cluster.")


@models.command("add")
@click.argument("source")
@click.option("--name", help="Under another name than the directory's.")
@click.option("--copy", is_flag=True, help="Copy the directory; a link is made otherwise.")
@models_dir_option
def add(source: str, name: str | None, copy: bool, models_dir: Path) -> None:
    """Add the checkpoint in the directory SOURCE, or the small model `smollm2`."""
    if source == _BUNDLED_ALIAS:
        _add_bundled(_destination(models_dir, BUNDLED_MODEL if name is None else name))
        return
    directory = Path(source).expanduser().resolve()
    if not (directory / "config.json").is_file():
        raise click.BadParameter(
            f"{directory} is no directory in Hugging Face's format: it has no config.json",
            param_hint="SOURCE",
        )
    destination = _destination(models_dir, directory.name if name is None else name)
    if destination.exists() or destination.is_symlink():
        raise click.ClickException(
            f"{destination} exists; remove it with `baton models rm`, or give another --name"
        )
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        if copy:
            _copy(directory, destination)
        else:
            destination.symlink_to(directory, target_is_directory=True)
    except OSError as error:
        raise click.ClickException(f"cannot add {directory}: {error}") from error
    click.echo(destination)


@models.command("rm")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@models_dir_option
def remove(name: str, yes: bool, models_dir: Path) -> None:
    """Remove the model NAME. Of one that was added as a link, only the link goes."""
    if name not in ModelStore(models_dir).names():
        raise click.ClickException(f"there is no model {name} in {models_dir}")
    path = models_dir / name
    if not path.is_symlink() and not yes:
        click.confirm(f"Remove {path} and the {_size(path) / 1e9:.2f} GB in it?", abort=True)
    try:
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path)
    except OSError as error:
        raise click.ClickException(f"cannot remove {path}: {error}") from error


def _destination(models_dir: Path, name: str) -> Path:
    parts = name.split("/")
    if len(parts) > 2 or any(not part or part.startswith(".") for part in parts):
        raise click.BadParameter(f"{name!r} is not NAME or OWNER/NAME", param_hint="--name")
    return models_dir / name


def _add_bundled(destination: Path) -> None:
    # A process of its own: the import needs torch, which this one does without.
    command = [sys.executable, "-P", "-m", "engines.checkpoints", "smollm2", str(destination)]
    with Console(stderr=True).status(f"importing {BUNDLED_MODEL}"):
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise click.ClickException(f"{BUNDLED_MODEL} was not imported; the reason is above")
    click.echo(done.stdout.decode().strip())


def _copy(directory: Path, destination: Path) -> None:
    """Copy so that the directory appears complete or not at all."""
    partial = destination.with_name(f".{destination.name}.partial")
    try:
        shutil.copytree(directory, partial)
        partial.rename(destination)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _local_models(store: ModelStore) -> list[_LocalModel]:
    return [
        _LocalModel(
            name=name,
            path=str((store.root / name).resolve()),
            architecture=_architecture(store.root / name / "config.json"),
            bytes=_size(store.root / name),
        )
        for name in store.names()
    ]


def _cluster_models(api: str) -> list[_ClusterModel] | None:
    try:
        with connect(api) as client:
            return msgspec.json.decode(get(client, "/v1/models"), type=_ClusterModels).data
    except NodeUnreachable:
        return None
    except msgspec.DecodeError as error:
        raise click.ClickException(f"the node's answer is not understood: {error}") from error


def _architecture(config: Path) -> str:
    try:
        return msgspec.json.decode(config.read_bytes(), type=_CheckpointConfig).model_type
    except (OSError, msgspec.DecodeError):
        return "unreadable config.json"


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
