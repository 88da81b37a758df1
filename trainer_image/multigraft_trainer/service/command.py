"""The command line of `python -m multigraft_trainer.service`: options and environment, and how the process ends."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from multigraft.api.reasons import RefusalError
from multigraft_trainer.reproducible import set_reproducible_environment
from multigraft_trainer.service.exit_codes import ExitCode, write_termination_message
from multigraft_trainer.service.json_log import EventLog, set_up_logging
from multigraft_trainer.service.settings import TrainerSettings, load_pool

_PREFIX = "MULTIGRAFT"
_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)
_PORT = click.IntRange(0, 65535)

_log = EventLog(__name__)


@click.command(context_settings={"auto_envvar_prefix": _PREFIX, "show_default": True})
@click.option("--pool-file", type=_FILE, required=True, help="Manifest of the BaseModelPool, with its metadata.uid.")
@click.option("--pod-name", required=True, help="Name of this pod; its checkpoints and plans lie under it.")
@click.option("--token-file", type=_FILE, required=True, help="Bearer tokens of the control port, one a line.")
@click.option("--storage-root", type=_FOLDER, required=True, help="Where relative model and dataset paths start.")
@click.option("--output-root", type=_FOLDER, required=True, help="Where relative output and checkpoint paths start.")
@click.option("--cache-dir", type=_FOLDER, default="/tmp/multigraft/cache", help="Tokenised datasets, downloads.")  # noqa: S108
@click.option("--state-dir", type=_FOLDER, default="/tmp/multigraft/state", help="The last desired set.")  # noqa: S108
@click.option("--host", default="0.0.0.0", help="Address of both ports.")  # noqa: S104
@click.option("--control-port", type=_PORT, default=8080, help="Control API and probes; 0: a free port.")
@click.option("--metrics-port", type=_PORT, default=9090, help="Prometheus metrics; 0: a free port.")
@click.option("--linger-seconds", type=click.FloatRange(0, 3600), default=30.0, help="Tell so long of a bad base.")
@click.option("--termination-log", type=_FILE, default="/dev/termination-log", help="Where the last words go.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
def trainer(*, pool_file: Path, termination_log: Path, log_level: str, **settings: object) -> None:
    """Serve one pool's base model to many adapters, as a pod of the pool does.

    Each option is also an environment variable: --pod-name is MULTIGRAFT_POD_NAME. Exit code 0: stopped by SIGTERM,
    every job checkpointed; 1: internal error, start again; 2: bad configuration.
    """
    set_up_logging(log_level)
    code = run_trainer(TrainerSettings(pool_file=pool_file, **settings), termination_log)  # type: ignore[arg-type]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is saved; intake or a solver may still be at work, and nobody waits for what they find


def run_trainer(settings: TrainerSettings, termination_log: Path) -> ExitCode:
    """Run one trainer to its end and leave word of a failure."""
    set_reproducible_environment()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        pool = load_pool(settings.pool_file)
        from multigraft_trainer.service.process import TrainerProcess  # torch is read only for a good manifest

        process = TrainerProcess(settings, pool)
        code = asyncio.run(process.run())
    except RefusalError as error:
        _log.error("bad configuration", reason=error.reason.value, message=error.message)
        write_termination_message(termination_log, error)
        return ExitCode.BAD_CONFIGURATION
    if process.trainer.failure is not None:
        write_termination_message(termination_log, process.trainer.failure)
    return code
