"""What is built from Go modules: which program, from where, with which version written into it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cluster.programs import versions

MODULES = Path(__file__).parents[2] / "kube"


@dataclass(frozen=True)
class Build:
    """One binary.

    Attributes:
        program: Name of the file.
        module: Folder of the Go module, under tests/kube.
        package: Go package to build, as seen from that folder.
        links: Further names that the binary answers to.
        variables: Go variables that are set at link time.
    """

    program: str
    module: str
    package: str
    links: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def folder(self) -> Path:
        return MODULES / self.module

    def inputs_digest(self) -> str:
        """Return a digest of all that decides what the binary does: sources, module sums and flags."""
        digest = hashlib.sha256(repr(self).encode())
        for source in sorted(path for pattern in ("go.mod", "go.sum") for path in self.folder.glob(pattern)):
            digest.update(source.read_bytes())
        package = self.folder / self.package
        for source in sorted(package.glob("*.go")) if self.package.startswith(".") else ():
            digest.update(source.read_bytes())
        return digest.hexdigest()

    def command(self, output: Path) -> tuple[str, ...]:
        """Return the command that builds the binary as `output`, to be run in `folder`."""
        link_flags = ["-s", "-w", *(f"-X {name}={value}" for name, value in self.variables)]
        flags = ("-trimpath", "-mod=readonly", "-buildvcs=false", "-ldflags", " ".join(link_flags))
        return ("go", "build", *flags, "-o", str(output), self.package)


def _kubernetes_version() -> tuple[tuple[str, str], ...]:
    major, minor, _ = versions.KUBERNETES.split(".")
    version = {
        "gitVersion": f"v{versions.KUBERNETES}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return tuple((f"{package}.{key}", value) for package in packages for key, value in version.items())


KUBE_LINKS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)

BUILDS = (
    Build("kube", ".", "./cmd/kube", links=KUBE_LINKS, variables=_kubernetes_version()),
    Build("pause", ".", "./cmd/pause"),
    Build(
        "helm",
        "helm",
        "helm.sh/helm/v3/cmd/helm",
        variables=(("helm.sh/helm/v3/internal/version.version", f"v{versions.HELM}"),),
    ),
    Build("coredns", "coredns", "."),
)
