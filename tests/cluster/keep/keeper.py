"""Keep one cluster as long as somebody uses it, then leave nothing of it.

The keeper is started by whoever wants a cluster and outlives him if it must. It holds two locks that the
kernel frees at its death: that of the folder and the slot. Users hold a lock too, so that the keeper sees
them end, however they end: a test run that was killed needs no cleaning up after.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType

from cluster.folders import ClusterFolder
from cluster.keep.remains import check_no_mounts
from cluster.locks import HeldLock, try_exclusive
from cluster.node.surroundings import (
    enter_namespaces,
    find_init,
    link_to_machine,
    prepare_surroundings,
    remove_surroundings,
)
from cluster.spec import ClusterSpec, Mode, Phase, load_spec, load_state, save_state

POLL_SECONDS = 0.2
END_TIMEOUT_SECONDS = 30.0


class Keeper:
    """The process that owns a cluster."""

    def __init__(self, folder: ClusterFolder) -> None:
        self._folder = folder
        self._spec = load_spec(folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._unused: HeldLock | None = None
        self._told_to_end = False

    def keep(self) -> None:
        """Run the cluster from its start to its end."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            self._launch()
        except (OSError, subprocess.CalledProcessError) as error:
            self._note_failure(f"{error} {getattr(error, 'stderr', None) or ''}".strip())
        self._wait_while_wanted()
        self._end()
        remove_cluster(self._folder, self._spec)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._told_to_end = True

    def _launch(self) -> None:
        command: tuple[str, ...] = (sys.executable, "-m", "cluster.keep.supervisor", str(self._folder.root))
        has_node = self._spec.mode is Mode.NODE
        if has_node:
            prepare_surroundings(self._spec)
            command = enter_namespaces(command)
        # setpriv: the kernel kills the child when this process dies, however it dies.
        command = ("setpriv", "--pdeathsig", "KILL", "--", *command)
        with self._folder.log_of("supervisor").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        if has_node:
            init_pid = find_init(self._process.pid)
            self._folder.init_pid.write_text(str(init_pid))
            link_to_machine(self._spec, init_pid)

    def _wait_while_wanted(self) -> None:
        while self._is_wanted():
            if self._process is not None and (status := self._process.poll()) is not None:
                self._note_failure(f"the supervisor ended with status {status}; see its log")
            time.sleep(POLL_SECONDS)

    def _is_wanted(self) -> bool:
        if self._told_to_end or self._folder.stop_request.exists():
            return False
        if self._spec.keep:
            return True
        # Held until the end: whoever would join now waits, and then finds no cluster.
        self._unused = try_exclusive(self._folder.users_lock)
        return self._unused is None

    def _note_failure(self, message: str) -> None:
        """Say what went wrong, unless that has been said; the logs stay as long as there are users."""
        state = load_state(self._folder)
        if state.phase is not Phase.FAILED:
            save_state(self._folder, replace(state, phase=Phase.FAILED, message=message))

    def _end(self) -> None:
        """Kill every process of the cluster and wait until the last is gone."""
        if self._process is None:
            return
        if self._process.poll() is None:
            if self._folder.init_pid.exists():
                # The first process of the namespaces: the kernel kills and reaps all the others before it is gone.
                os.kill(int(self._folder.init_pid.read_text()), signal.SIGKILL)
            else:
                self._process.terminate()
        try:
            self._process.wait(END_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def remove_cluster(folder: ClusterFolder, spec: ClusterSpec) -> None:
    """Remove all that a cluster leaves when its processes have been killed.

    Raises:
        OSError: If something is still in use.
    """
    if spec.mode is Mode.NODE:
        remove_surroundings(spec)
    check_no_mounts(folder.root)
    shutil.rmtree(folder.root)


def main() -> None:
    """Keep the cluster in the folder that the command line names.

    Two descriptors have been inherited and stay open until this process ends: the folder's lock and the slot.
    """
    Keeper(ClusterFolder(Path(sys.argv[1]))).keep()


if __name__ == "__main__":
    main()
