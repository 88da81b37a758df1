"""One number for each cluster on this machine, and the addresses that follow from it.

A cluster has loopback addresses and, if it has a node, a link of its own. So every cluster may use the
customary ports, two never meet, and nobody has to guess which port is free.
"""

import socket
from dataclasses import dataclass

LAST_SLOT = 250
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"  # Kubernetes gives the first address of the service range to its API server
DNS_SERVICE_ADDRESS = "10.96.0.10"  # by custom
DEVICE_PREFIX = "multigraft"
POD_RANGE = "10.244.0.0/24"


@dataclass(frozen=True)
class Slot:
    """The place of one cluster among those of this machine: 1 to 250."""

    number: int

    @property
    def loopback(self) -> str:
        """Return the address that a cluster without a node listens on."""
        return f"127.77.{self.number}.1"

    @property
    def host_address(self) -> str:
        """Return the machine's end of the link to the node. 198.18.0.0/15 is set aside for test networks (RFC 2544)."""
        return f"198.18.{self.number}.1"

    @property
    def node_address(self) -> str:
        """Return the node's end of the link; its API server is there too."""
        return f"198.18.{self.number}.2"

    @property
    def host_device(self) -> str:
        """Return the name of the machine's end of the link."""
        return f"{DEVICE_PREFIX}{self.number}"


def take_slot() -> tuple[Slot, socket.socket]:
    """Take the lowest free slot of this machine.

    Returns:
        The slot, and the socket that holds it: whoever has the socket open, has the slot. Its name lives in
        the kernel and not on disk, so that it is seen by every user and freed when its holders die.

    Raises:
        RuntimeError: If all slots are taken.
    """
    for number in range(1, LAST_SLOT + 1):
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            holder.bind(f"\0multigraft-test-cluster-{number}")
        except OSError:
            holder.close()
        else:
            return Slot(number), holder
    raise RuntimeError(f"all {LAST_SLOT} slots for test clusters on this machine are taken")
