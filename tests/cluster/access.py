"""What a test may do with any cluster, whoever runs it: kubectl, Helm, logs."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM

from cluster.programs.locate import Programs

COMMAND_TIMEOUT_SECONDS = 300.0


class CommandError(RuntimeError):
    """A command failed; the text has the command and what it said."""


class UnsupportedError(RuntimeError):
    """This kind of cluster cannot do that; the text says which can."""


@dataclass(frozen=True)
class ClusterAccess:
    """A cluster that can be reached by a kubeconfig.

    Attributes:
        name: What it is called in messages and log folders.
        kubeconfig: Its admin's kubeconfig.
        programs: Where kubectl and helm are.
        scratch: Folder for the caches of both, so that they leave none in the home folder.
    """

    name: str
    kubeconfig: Path
    programs: Programs
    scratch: Path

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that is to talk to this cluster."""
        return {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self.scratch / "kubectl"),
            "HELM_CACHE_HOME": str(self.scratch / "helm" / "cache"),
            "HELM_CONFIG_HOME": str(self.scratch / "helm" / "config"),
            "HELM_DATA_HOME": str(self.scratch / "helm" / "data"),
        }

    def kubectl(self, *arguments: str, text: str = "") -> str:
        """Run kubectl with `text` as its standard input and return what it prints.

        Raises:
            CommandError: If it fails.
        """
        return run_command((self.programs.path("kubectl"), *arguments), self.environment(), text)

    def helm(self, *arguments: str, text: str = "") -> str:
        """Run Helm with `text` as its standard input and return what it prints.

        Raises:
            CommandError: If it fails.
        """
        return run_command((self.programs.path("helm"), *arguments), self.environment(), text)

    def load_image(self, archive: Path) -> None:
        """Make the image of a docker-archive known to the node.

        Raises:
            UnsupportedError: If only a registry could bring images into this cluster.
        """
        raise UnsupportedError(f"{self.name}: images cannot be loaded; push {archive.name} to its registry instead")

    def stop(self, component: str, signal_number: int = SIGTERM) -> None:
        """Stop a part of the cluster, such as kubelet or kube-apiserver, until `start`.

        Raises:
            UnsupportedError: If the cluster is not this project's own.
        """
        raise UnsupportedError(
            f"{self.name}: cannot stop {component} (signal {signal_number}); only a cluster of E2E_CLUSTER=own can"
        )

    def start(self, component: str) -> None:
        """Start a part of the cluster again and wait until it serves.

        Raises:
            UnsupportedError: If the cluster is not this project's own.
        """
        raise UnsupportedError(f"{self.name}: cannot start {component}; only a cluster of E2E_CLUSTER=own can")

    def check_alive(self) -> None:
        """Make sure that no part of the cluster has died by itself, as far as that can be known.

        Raises:
            ClusterError: If one has.
        """

    def collect_logs(self, target: Path) -> None:
        """Write what there is to see into the folder `target`: objects, events, logs."""
        target.mkdir(parents=True, exist_ok=True)
        views = {
            "objects.txt": ("get", "all,events", "--all-namespaces", "--output=wide"),
            "nodes.yaml": ("get", "nodes", "--output=yaml"),
            "pods.yaml": ("get", "pods", "--all-namespaces", "--output=yaml"),
            "multigraft.yaml": ("get", "multigraft", "--all-namespaces", "--output=yaml"),
        }
        for file_name, arguments in views.items():
            try:
                text = self.kubectl(*arguments, "--request-timeout=10s")
            except CommandError as error:
                text = str(error)
            (target / file_name).write_text(text)


def run_command(command: tuple[str, ...], environment: dict[str, str], text: str = "") -> str:
    """Run a command and return its standard output.

    Raises:
        CommandError: If it fails or takes more than five minutes.
    """
    shown = " ".join([Path(command[0]).name, *command[1:]])
    try:
        done = subprocess.run(
            command,
            input=text,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        raise CommandError(f"{shown}: status {error.returncode}: {error.stderr.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{shown}: not done after {COMMAND_TIMEOUT_SECONDS:.0f} s") from error
    return done.stdout
