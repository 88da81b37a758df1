"""Run the parts of one cluster: start them in order, notice when one dies, stop and start one when asked.

This is a process of its own, so that a cluster does not depend on which test process started it. With a node
it runs inside the node's namespaces. It ends at once when its keeper dies, and all it started with it.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from cluster.folders import ClusterFolder
from cluster.keep.component import Component
from cluster.keep.control import ControlServer, Request
from cluster.keep.plan import build_components
from cluster.node.inside import prepare_inside
from cluster.node.settle import settle_node
from cluster.spec import ClusterSpec, ClusterState, Mode, Phase, load_spec, load_state, save_state

READY_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 15.0
RESTART_SECONDS = 1.0
POLL_SECONDS = 0.05


class StartError(RuntimeError):
    """A component did not come up; the text names it and its log."""


class Supervisor:
    """The running components of one cluster."""

    def __init__(self, folder: ClusterFolder, components: Iterable[Component]) -> None:
        self._folder = folder
        self._components = {component.name: component for component in components}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._restart_at: dict[str, float] = {}  # monotonic seconds
        self._disturbed = False

    def start_all(self) -> dict[str, float]:
        """Start every stage in turn; return the seconds that each took."""
        seconds = {}
        for stage in sorted({component.stage for component in self._components.values()}):
            names = [name for name, component in self._components.items() if component.stage == stage]
            began = time.monotonic()
            for name in names:
                self._spawn(name)
            for name in names:
                self._wait_ready(name)
            seconds[" ".join(names)] = round(time.monotonic() - began, 2)
        return seconds

    def start(self, name: str) -> None:
        """Start a component that does not run, and wait until it serves."""
        if name in self._running:
            raise ValueError(f"{name} runs already")
        self._spawn(self._known(name))
        self._restart_at.pop(name, None)
        self._wait_ready(name)

    def stop(self, name: str, signal_number: int) -> None:
        """Send a component a signal and wait for its end; after 15 seconds it is killed."""
        self._disturbed = True
        was_to_restart = self._restart_at.pop(self._known(name), None) is not None
        process = self._running.pop(name, None)
        if process is None:
            if was_to_restart:
                return
            raise ValueError(f"{name} does not run")
        process.send_signal(signal_number)
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def take_dead(self) -> dict[str, int]:
        """Return the components that have ended by themselves since the last call, with their exit status.

        Once a part has been stopped on purpose, others may die of that: controllers do, when the API server
        goes away while they start. They are then started again after a second, as in any cluster.
        """
        dead = {name: status for name, process in self._running.items() if (status := process.poll()) is not None}
        for name in dead:
            del self._running[name]
            if self._disturbed:
                self._restart_at[name] = time.monotonic() + RESTART_SECONDS
        for name in [name for name, due in self._restart_at.items() if due <= time.monotonic()]:
            del self._restart_at[name]
            self._spawn(name)
        return {} if self._disturbed else dead

    def kill_all(self) -> None:
        """End everything and wait for it."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        self._running.clear()

    def _known(self, name: str) -> str:
        if name not in self._components:
            raise ValueError(f"{name}: no such component; must be one of {', '.join(sorted(self._components))}")
        return name

    def _spawn(self, name: str) -> None:
        component = self._components[name]
        # setpriv: the kernel kills the component when this process dies, however it dies.
        command = ("setpriv", "--pdeathsig", "KILL", "--", *component.command)
        with self._folder.log_of(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self._folder.data
            )

    def _wait_ready(self, name: str) -> None:
        component, process = self._components[name], self._running[name]
        log = self._folder.log_of(name)
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        while not component.ready.holds():
            status = process.poll()
            if status is not None:
                del self._running[name]
                raise StartError(f"{name} ended with status {status} before it served; see {log}")
            if time.monotonic() > deadline:
                raise StartError(f"{name} did not serve within {READY_TIMEOUT_SECONDS:.0f} s; see {log}")
            time.sleep(POLL_SECONDS)


def run(folder: ClusterFolder, spec: ClusterSpec) -> None:
    """Bring the cluster up and serve it until this process is ended."""
    if spec.mode is Mode.NODE:
        prepare_inside(folder, spec)
    supervisor = Supervisor(folder, build_components(folder, spec))
    try:
        seconds = supervisor.start_all()
        if spec.mode is Mode.NODE:
            began = time.monotonic()
            settle_node(folder, spec)
            seconds["node ready"] = round(time.monotonic() - began, 2)
        _change_state(folder, phase=Phase.READY, started_seconds=seconds)
        serve(folder, supervisor)
    finally:
        supervisor.kill_all()


def serve(folder: ClusterFolder, supervisor: Supervisor) -> None:
    """Answer requests and write down deaths, for ever."""

    def handle(request: Request) -> None:
        if request.action == "stop":
            supervisor.stop(request.component, request.signal_number)
        elif request.action == "start":
            supervisor.start(request.component)
        else:
            raise ValueError(f"action {request.action!r}: must be start or stop")

    with ControlServer(folder.control_socket, handle) as server:
        while True:
            server.handle_request()
            if dead := supervisor.take_dead():
                _change_state(folder, died={**load_state(folder).died, **dead})


def _change_state(folder: ClusterFolder, **changes: object) -> ClusterState:
    state = replace(load_state(folder), **changes)  # type: ignore[arg-type]  # checked by ClusterState itself
    save_state(folder, state)
    return state


def main() -> None:
    """Run the supervisor of the cluster in the folder that the command line names."""
    folder = ClusterFolder(Path(sys.argv[1]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that `finally` is reached
    try:
        run(folder, load_spec(folder))
    except (StartError, TimeoutError, OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or ""
        _change_state(folder, phase=Phase.FAILED, message=f"{error} {said}".strip())
        sys.exit(1)


if __name__ == "__main__":
    main()
