"""One part of a cluster: a process that runs as long as the cluster does."""

from dataclasses import dataclass

from cluster.keep.probes import Probe


@dataclass(frozen=True)
class Component:
    """A process to run.

    Attributes:
        name: What it is called in logs, in `Cluster.stop` and on disk.
        stage: Components of one stage start together, after all of the stage before serve.
        ready: How to see that it serves.
    """

    name: str
    stage: int
    command: tuple[str, ...]
    ready: Probe
