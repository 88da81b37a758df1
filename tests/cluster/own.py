"""A cluster of this project's own making: started, joined, listed and ended."""

import contextlib
import datetime
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM

from cluster.access import ClusterAccess, run_command
from cluster.folders import ClusterFolder, clusters_lock, clusters_root
from cluster.images.pause import pause_archive
from cluster.keep.control import Request, send_request
from cluster.keep.keeper import remove_cluster
from cluster.keep.plan import write_files
from cluster.locks import HeldLock, exclusive, is_held, take_exclusive, take_shared, wait_until_free
from cluster.node.memory import images_fit_in_memory
from cluster.node.settle import load_image
from cluster.programs.locate import API_SERVER_PROGRAMS, NODE_PROGRAMS, locate_programs
from cluster.proxies import without_proxies
from cluster.slot import take_slot
from cluster.spec import ClusterSpec, Mode, Phase, load_spec, load_state, save_spec

START_TIMEOUT_SECONDS = 240.0
END_TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.05
LOG_TAIL_LINES = 15
TESTS_FOLDER = Path(__file__).parents[1]


class ClusterError(RuntimeError):
    """A cluster did not start, or a part of it died; the text says which, and how its log ends."""


@dataclass(frozen=True)
class OwnCluster(ClusterAccess):
    """A running cluster, as seen by one of its users."""

    folder: ClusterFolder
    spec: ClusterSpec
    use: HeldLock = field(repr=False)

    def leave(self) -> None:
        """Stop using it. With its last user the cluster ends, unless it is to be kept."""
        self.use.release()

    def environment(self) -> dict[str, str]:
        return without_proxies(super().environment())

    def load_image(self, archive: Path) -> None:
        status = archive.stat()
        mark = self.folder.data / "loaded" / f"{archive.name}-{status.st_size}-{status.st_mtime_ns}"
        with exclusive(mark.with_name(".lock")):
            if not mark.exists():  # each worker of a test run asks for the same images
                load_image(self.folder.containerd_socket, archive)
                mark.touch()

    def stop(self, component: str, signal_number: int = SIGTERM) -> None:
        send_request(self.folder.control_socket, Request("stop", component, signal_number))

    def start(self, component: str) -> None:
        send_request(self.folder.control_socket, Request("start", component))

    def check_alive(self) -> None:
        state = load_state(self.folder)
        if state.phase is Phase.FAILED:
            raise ClusterError(_describe_failure(self.folder))
        if state.died:
            tails = "\n".join(_tail(self.folder.log_of(name)) for name in state.died)
            raise ClusterError(f"cluster {self.name}: died by themselves: {state.died}\n{tails}")

    def run_on_node(self, *command: str) -> str:
        """Run a command as root in the node's namespaces and return what it prints.

        Raises:
            CommandError: If it fails.
            FileNotFoundError: If the cluster has no node.
        """
        init_pid = self.folder.init_pid.read_text()
        enter = ("nsenter", f"--target={init_pid}", "--net", "--mount", "--pid", "--")
        return run_command((*enter, *command), self.environment())

    def collect_logs(self, target: Path) -> None:
        super().collect_logs(target)
        shutil.copytree(self.folder.logs, target / "logs", dirs_exist_ok=True)


def start_cluster(mode: Mode, name: str = "", *, keep: bool = False) -> OwnCluster:
    """Start a cluster and return when it can be used.

    Args:
        name: 1 to 20 lower-case letters, digits and dashes, a letter first; made up if empty.
        keep: Whether it goes on when its last user has left.

    Raises:
        ValueError: If the name is none.
        ClusterError: If it does not come up.
        ProgramsMissingError: If a program is missing.
        FileExistsError: If there is a cluster of this name already.
    """
    folder = _folder_of(name or f"c{secrets.token_hex(3)}")
    programs = locate_programs(NODE_PROGRAMS if mode is Mode.NODE else API_SERVER_PROGRAMS)
    archive = str(pause_archive(programs)) if mode is Mode.NODE else ""
    sweep_abandoned()
    with exclusive(clusters_lock()):
        folder.root.mkdir(mode=0o755)
        keeper_lock = take_exclusive(folder.keeper_lock)
    use = take_shared(folder.users_lock, create=True)
    slot, slot_holder = take_slot()
    with slot_holder:
        in_memory = mode is Mode.NODE and images_fit_in_memory()
        spec = ClusterSpec(folder.name, mode, slot.number, str(programs.folder), keep, archive, in_memory)
        save_spec(folder, spec)
        write_files(folder, spec, datetime.datetime.now(datetime.UTC))
        _spawn_keeper(folder, (keeper_lock.descriptor, slot_holder.fileno()))
    keeper_lock.release()  # this process's copy; the keeper has its own
    cluster = _access(folder, spec, use)
    try:
        _wait_until_ready(folder)
    except BaseException:
        # Its last user gone, or told to, the keeper ends what has come up.
        with contextlib.suppress(FileNotFoundError):
            folder.stop_request.touch()
        cluster.leave()
        raise
    return cluster


def join_cluster(name: str) -> OwnCluster | None:
    """Use a cluster that runs already; None if there is none of this name that is ready."""
    folder = _folder_of(name)
    try:
        use = take_shared(folder.users_lock)
    except FileNotFoundError:
        return None
    if load_state(folder).phase is not Phase.READY or not is_held(folder.keeper_lock):
        use.release()
        return None
    return _access(folder, load_spec(folder), use)


def end_cluster(name: str) -> None:
    """End a cluster, whoever still uses it, and return when nothing is left of it.

    Raises:
        ClusterError: If there is none of this name, or it is still there after a minute.
    """
    folder = _folder_of(name)
    try:
        folder.stop_request.touch()
        ended = wait_until_free(folder.keeper_lock, END_TIMEOUT_SECONDS)
    except FileNotFoundError:
        if folder.root.exists():
            raise
        raise ClusterError(f"there is no cluster {name}") from None
    if not ended:
        raise ClusterError(f"cluster {name} is still there; see {folder.log_of('keeper')}")
    sweep_abandoned()  # it may have had no keeper any more


def list_clusters() -> list[tuple[ClusterSpec, Phase]]:
    """Return every cluster that a keeper looks after."""
    folders = [ClusterFolder(path) for path in sorted(clusters_root().glob("[!.]*"))]
    return [(load_spec(folder), load_state(folder).phase) for folder in folders if folder.spec.exists()]


def sweep_abandoned() -> list[str]:
    """Remove what is left of clusters whose keepers were killed, and return their names.

    Raises:
        OSError: If something of them is still in use.
    """
    swept = []
    with exclusive(clusters_lock()):
        for path in sorted(clusters_root().glob("[!.]*")):
            folder = ClusterFolder(path)
            if is_held(folder.keeper_lock):
                continue
            if folder.spec.exists():
                remove_cluster(folder, load_spec(folder))
            else:
                shutil.rmtree(path)
            swept.append(path.name)
    return swept


def _folder_of(name: str) -> ClusterFolder:
    # It becomes part of the node's name, of a control group's and of a path in the configuration of others.
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,19}", name):
        raise ValueError(f"cluster name {name!r}: must be 1 to 20 of a-z, 0-9 and -, and start with a letter")
    return ClusterFolder(clusters_root() / name)


def _access(folder: ClusterFolder, spec: ClusterSpec, use: HeldLock) -> OwnCluster:
    return OwnCluster(spec.name, folder.kubeconfig, spec.programs, folder.data, folder, spec, use)


def _spawn_keeper(folder: ClusterFolder, descriptors: tuple[int, ...]) -> None:
    # A session of its own, since an interrupt from the keyboard is for the tests; and nobody's child, since
    # whoever starts the cluster need not be the last to use it.
    command = ("setsid", "--fork", sys.executable, "-m", "cluster.keep.keeper", str(folder.root))
    environment = {**without_proxies(os.environ), "PYTHONPATH": str(TESTS_FOLDER)}
    with folder.log_of("keeper").open("ab") as log:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd="/",
            pass_fds=descriptors,
            check=True,
        )


def _wait_until_ready(folder: ClusterFolder) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while (phase := load_state(folder).phase) is not Phase.READY:
        if phase is Phase.FAILED or not is_held(folder.keeper_lock):
            raise ClusterError(_describe_failure(folder))
        if time.monotonic() > deadline:
            raise ClusterError(f"cluster {folder.name} is not ready after {START_TIMEOUT_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def _describe_failure(folder: ClusterFolder) -> str:
    message = load_state(folder).message or "its keeper died"
    suspects = [log for log in sorted(folder.logs.glob("*.log")) if log.stem in message] or [folder.log_of("keeper")]
    return f"cluster {folder.name}: {message}\n" + "\n".join(_tail(log) for log in suspects)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:] if log.exists() else []
    return "\n".join([f"--- end of {log.name} ---", *lines])
