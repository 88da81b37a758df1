"""`python -m multigraft_operator`: the operator, as it runs in a pod."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from pathlib import Path

import click

from multigraft_operator.children.options import ChildOptions
from multigraft_operator.json_logs import set_up_logging
from multigraft_operator.settings import OperatorSettings, read_key

_FILE = click.Path(dir_okay=False, path_type=Path)
_PORT = click.IntRange(1, 65535)


@click.command(context_settings={"auto_envvar_prefix": "MULTIGRAFT_OPERATOR", "show_default": True})
@click.option("--key-file", type=_FILE, required=True, help="At least 32 random bytes; pools' tokens come from it.")
@click.option("--trainer-image", required=True, help="Image of the trainer pods.")
@click.option("--image-pull-policy", type=click.Choice(["Always", "IfNotPresent", "Never"]), default="IfNotPresent")
@click.option("--namespace", default="multigraft-system", help="The operator's own namespace, where its Lease lies.")
@click.option("--watch-namespace", multiple=True, help="Namespace to serve; may be repeated. Default: all.")
@click.option("--lease-name", default="multigraft-operator", help="Name of the Lease.")
@click.option(
    "--identity",
    default="",
    help="Name of this process in the Lease, such as its pod; one that bears it already is taken over at once.",
)
@click.option("--standalone", is_flag=True, help="No Lease: there is no other operator.")
@click.option("--http-port", type=_PORT, default=8081, help="Probes and metrics.")
@click.option("--control-port", type=_PORT, default=8080, help="Control port of trainers.")
@click.option("--trainer-metrics-port", type=_PORT, default=9090, help="Metrics port of trainers.")
@click.option("--poll-seconds", type=click.FloatRange(0.1, 10), default=3.0, help="Seconds between asking a trainer.")
@click.option("--relist-seconds", type=click.FloatRange(1, 600), default=25.0, help="Seconds between whole lists.")
@click.option("--reapply-seconds", type=click.FloatRange(1), default=300.0, help="Seconds until children are put back.")
@click.option("--kueue-queue", default="", help="Queue of Kueue that trainer pods are put in; default: none.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
def operator(
    *,
    key_file: Path,
    trainer_image: str,
    image_pull_policy: str,
    namespace: str,
    watch_namespace: tuple[str, ...],
    lease_name: str,
    identity: str,
    standalone: bool,
    http_port: int,
    control_port: int,
    trainer_metrics_port: int,
    poll_seconds: float,
    relist_seconds: float,
    reapply_seconds: float,
    kueue_queue: str,
    log_level: str,
) -> None:
    """Run the operator until SIGTERM; exit code 1: leadership or watches were lost, start again."""
    set_up_logging(log_level)
    try:
        key = read_key(key_file)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    children = ChildOptions(
        image=trainer_image,
        image_pull_policy=image_pull_policy,
        control_port=control_port,
        metrics_port=trainer_metrics_port,
        operator_namespace=namespace,
        kueue_queue=kueue_queue,
    )
    settings = OperatorSettings(
        key=key,
        namespace=namespace,
        watch_namespaces=watch_namespace,
        lease_name=lease_name,
        identity=identity or f"{os.uname().nodename}-{secrets.token_hex(4)}",
        is_standalone=standalone,
        http_port=http_port,
        poll_seconds=poll_seconds,
        relist_seconds=relist_seconds,
        reapply_seconds=reapply_seconds,
        children=children,
    )
    sys.exit(asyncio.run(_run(settings)))


async def _run(settings: OperatorSettings) -> int:
    from multigraft_operator.process import OperatorProcess  # kopf is read only for good options

    return await OperatorProcess(settings).run()


if __name__ == "__main__":
    operator(prog_name="multigraft-operator")
