"""Make an installed CUDA build of torch small, for machines without a GPU: `python slim_torch.py SITE_PACKAGES`.

PyPI's torch for x86-64 is the CUDA build, 4.7 GB with its libraries, all of which must be there for `import torch`. The
large ones are replaced by libraries that export the same symbols and do nothing; what is only opened on a GPU is
removed. Needs gcc and nm. For test images: on a machine with a GPU the result crashes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HOLLOWED = (
    "libcublas.so.*", "libcublasLt.so.*", "libcudnn.so.*", "libcufft.so.*", "libcufile.so.*", "libcurand.so.*",
    "libcusparse.so.*", "libcusparseLt.so.*", "libnccl.so.*", "libnvshmem_host.so.*",
)  # fmt: skip
"""Libraries that `import torch` links to: they must be there, with their symbols."""

REMOVED = (
    "torch/lib/libtorch_cuda_linalg.so", "torch/include", "torch/test", "triton", "nvidia/*/include",
    "nvidia/*/lib/libcudnn_*", "nvidia/*/lib/libcusolver*", "nvidia/*/lib/libnvrtc*", "nvidia/*/lib/libnvJitLink*",
    "nvidia/*/lib/libnvperf*", "nvidia/*/lib/libnvblas*", "nvidia/*/lib/libcufftw*", "nvidia/*/lib/*.a",
)  # fmt: skip

_SYMBOL = re.compile(r"^(?:[0-9a-f]+)? *(?P<kind>[A-Za-z]) (?P<name>[A-Za-z_]\w*)(?:@@?(?P<version>\S+))?$")


def list_symbols(library: Path) -> dict[str, str]:
    """Return the functions and data that a library exports, each with its version (empty: none).

    What a library has of the C++ standard library is left out: an empty one would be taken in place of the real one.
    """
    command = ("nm", "--dynamic", "--defined-only", "--with-symbol-versions", str(library))
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
    found = (_SYMBOL.match(line) for line in said.splitlines())
    return {match["name"]: match["version"] or "" for match in found if match and _is_own(match["kind"], match["name"])}


def _is_own(kind: str, name: str) -> bool:
    if kind in "WVuw":
        return not name.startswith(("_Z", "__"))
    return kind in "TDBR" and not name.startswith(("_ZNS", "_ZNKS", "_ZS", "_ZTIS", "_ZTSS", "_ZTVS"))


def hollow(library: Path, target: Path) -> None:
    """Write a library of the same name as `library`, with the same symbols, that does nothing, to `target`."""
    symbols = {name: version for name, version in list_symbols(library).items() if name not in {"_init", "_fini"}}
    versions = sorted({version for version in symbols.values() if version})
    script = "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in symbols if symbols[name] == version)} }};\n"
        for version in versions
    )
    with tempfile.TemporaryDirectory() as folder:
        source, map_file, built = Path(folder) / "empty.c", Path(folder) / "versions.map", Path(folder) / "built.so"
        source.write_text("".join(f"void {name}(void) {{}}\n" for name in symbols))
        map_file.write_text(script)
        given = [f"-Wl,--version-script={map_file}"] if versions else []
        command = ["gcc", "-shared", "-fPIC", "-fno-builtin", "-w", f"-Wl,-soname,{library.name}", *given]
        subprocess.run([*command, "-o", str(built), str(source)], check=True)  # noqa: S603
        shutil.copyfile(built, target)


def slim(site_packages: Path) -> None:
    """Make the torch of `site_packages` small."""
    for pattern in HOLLOWED:
        for library in site_packages.glob(f"nvidia/*/lib/{pattern}"):
            hollow(library, library)
    for pattern in REMOVED:
        for path in site_packages.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


if __name__ == "__main__":
    slim(Path(sys.argv[1]))
