"""`python -m cluster`, in tests/: build, start, use and end test clusters by hand."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from builders.example_cluster import build_images
from cluster import own
from cluster.access import CommandError
from cluster.images.pause import pause_archive
from cluster.images.python_base import python_base_archive
from cluster.images.store import ImageError
from cluster.node.requirements import missing_for_node
from cluster.programs.build import ProgramsMissingError, build_programs
from cluster.programs.locate import Programs
from cluster.programs.prometheus import unpack_prometheus
from cluster.spec import Mode

KNOWN_ERRORS = (own.ClusterError, CommandError, ProgramsMissingError, ImageError, ValueError, OSError)


@click.group()
def commands() -> None:
    """Test clusters: a real API server, or a whole node, from this machine alone."""


@commands.command()
@click.option("--images/--no-images", default=True, help="Also build the images, where a node can run.")
def build(images: bool) -> None:
    """Build what a cluster needs into the cache. Does nothing where it is there."""
    folder = build_programs(click.echo)
    click.echo(f"programs: {folder}")
    try:
        click.echo(f"programs: {unpack_prometheus()}")
    except (ProgramsMissingError, OSError) as error:
        click.echo(f"no Prometheus, so tests that need it are skipped: {error}")
    if not images:
        return
    if missing := missing_for_node():
        click.echo(f"no images: {missing}")
        return
    click.echo(f"image: {pause_archive(Programs(folder))}")
    click.echo(f"image: {python_base_archive()}")
    for archive in build_images():
        click.echo(f"image: {archive}")


@commands.command()
@click.option("--name", default="dev", show_default=True, help="1 to 20 of a-z, 0-9 and -.")
@click.option("--node/--no-node", default=True, show_default=True, help="With a node (root), or the API server alone.")
def up(name: str, node: bool) -> None:
    """Start a cluster that goes on until `down`."""
    if node and (missing := missing_for_node()):
        raise click.ClickException(f"{missing}; or use --no-node")
    cluster = own.start_cluster(Mode.NODE if node else Mode.API_SERVER, name, keep=True)
    cluster.leave()
    click.echo(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}")
    click.echo(f"export PATH={shlex.quote(str(cluster.programs.folder))}:$PATH")


@commands.command()
@click.option("--name", default="dev", show_default=True)
def down(name: str) -> None:
    """End a cluster and remove all of it."""
    own.end_cluster(name)


@commands.command("list")
def list_all() -> None:
    """Show the clusters of this machine."""
    for spec, phase in own.list_clusters():
        click.echo(f"{spec.name}\t{spec.mode}\t{phase}\t{spec.api_url}")


@commands.command()
def sweep() -> None:
    """Remove what killed clusters have left; every start does so too."""
    for name in own.sweep_abandoned():
        click.echo(f"removed {name}")


@commands.command()
@click.option("--name", default="dev", show_default=True)
@click.argument("archive", type=click.Path(exists=True, dir_okay=False))
def load(name: str, archive: str) -> None:
    """Make the image of a docker-archive known to the node."""
    with _joined(name) as cluster:
        cluster.load_image(Path(archive))


@commands.command(context_settings={"ignore_unknown_options": True})
@click.option("--name", default="dev", show_default=True)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def on_node(name: str, command: tuple[str, ...]) -> None:
    """Run a command in the node's namespaces, such as `iptables-save` or `ps -ef`."""
    with _joined(name) as cluster:
        click.echo(cluster.run_on_node(*command), nl=False)


@contextmanager
def _joined(name: str) -> Iterator[own.OwnCluster]:
    cluster = own.join_cluster(name)
    if cluster is None:
        raise click.ClickException(f"no cluster {name} is ready")
    try:
        yield cluster
    finally:
        cluster.leave()


def main() -> None:
    """Run the command line; what is known to go wrong is one line and no traceback."""
    try:
        commands()
    except KNOWN_ERRORS as error:
        raise SystemExit(f"cluster: {error}") from None


if __name__ == "__main__":
    main()
