from __future__ import annotations

from pathlib import Path

import pytest

from multigraft_trainer.adapters.slots import LinearShape
from multigraft_trainer.capacity.host_estimate import estimate_capacity, estimate_token_bytes, read_free_bytes

GIB = 2**30
MIB = 2**20


@pytest.mark.parametrize(
    "free, token_bytes, tile, want",
    [
        pytest.param(8 * GIB, 4 * MIB, 1, 1024, id="half of what is free"),
        pytest.param(8 * GIB, 4 * MIB, 48, 1008, id="whole tiles"),
        pytest.param(1024 * GIB, 4 * MIB, 1, 4096, id="no more than a CPU gains from"),
        pytest.param(0, 4 * MIB, 1, 256, id="no memory at all: the least that training makes sense with"),
        pytest.param(8 * GIB, 400 * MIB, 1, 256, id="a model far too large"),
        pytest.param(8 * GIB, 1, 1, 4096, id="a model of a few bytes"),
        pytest.param(0, MIB, 300, 300, id="a tile larger than the least"),
        pytest.param(8 * GIB, 4 * MIB, 5000, 5000, id="a tile larger than the most"),
    ],
)
def test_the_capacity_is_bounded_whatever_is_free(free: int, token_bytes: int, tile: int, want: int) -> None:
    assert estimate_capacity(free_bytes=free, token_bytes=token_bytes, tile_tokens=tile) == want


def test_a_token_takes_three_of_each_input_and_output() -> None:
    linears = {"a": LinearShape(in_features=10, out_features=20), "b": LinearShape(in_features=20, out_features=5)}
    assert estimate_token_bytes(linears, itemsize=4) == 3 * 4 * 55


def write_machine(root: Path, *, available_kib: int, limit: str | None = None, used: int = 0, cached: int = 0) -> Path:
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable:   {available_kib} kB\n")
    if limit is not None:
        cgroup = root / "sys/fs/cgroup"
        cgroup.mkdir(parents=True)
        (cgroup / "memory.max").write_text(f"{limit}\n")
        (cgroup / "memory.current").write_text(f"{used}\n")
        (cgroup / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\nactive_file 7\n")
    return root


@pytest.mark.parametrize(
    "machine, want",
    [
        pytest.param({"available_kib": 2048}, 2 * MIB, id="no cgroup"),
        pytest.param({"available_kib": 2048, "limit": "max"}, 2 * MIB, id="a cgroup without limit"),
        pytest.param(
            {"available_kib": 8192, "limit": str(4 * MIB), "used": MIB}, 3 * MIB, id="a container's limit counts"
        ),
        pytest.param(
            {"available_kib": 8192, "limit": str(4 * MIB), "used": 3 * MIB, "cached": 2 * MIB},
            3 * MIB,
            id="cached files make way",
        ),
        pytest.param({"available_kib": 1024, "limit": str(4 * MIB)}, MIB, id="the machine has less than the limit"),
        pytest.param({"available_kib": 8192, "limit": str(MIB), "used": 2 * MIB}, 0, id="over the limit already"),
    ],
)
def test_free_memory_is_what_machine_and_container_leave(tmp_path: Path, machine: dict[str, object], want: int) -> None:
    assert read_free_bytes(write_machine(tmp_path, **machine)) == want  # type: ignore[arg-type]


def test_this_machine_says_something() -> None:
    assert read_free_bytes() > 0


def test_a_machine_without_proc_still_says_something(tmp_path: Path) -> None:
    assert read_free_bytes(tmp_path) > 0
