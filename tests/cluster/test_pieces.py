"""The pieces of the harness that decide something, without a cluster."""

from pathlib import Path

import pytest

from cluster.choice import Choice, chosen_cluster, existing_cluster
from cluster.control_plane.components import flags
from cluster.folders import ClusterFolder, cache_root
from cluster.keep.remains import mounts_below
from cluster.locks import is_held, take_exclusive, take_shared, try_exclusive
from cluster.node.cgroups import cgroup_roots
from cluster.node.memory import available_bytes
from cluster.slot import Slot, take_slot
from cluster.spec import ClusterState, Phase, load_state, save_state


@pytest.mark.parametrize(
    "value, want",
    [(True, ("--a-b=true",)), (False, ("--a-b=false",)), (0, ("--a-b=0",)), ("", ("--a-b=",)), (None, ())],
    ids=["true", "false", "zero", "empty text is given", "nothing leaves it out"],
)
def test_flags(value: object, want: tuple[str, ...]) -> None:
    assert flags(a_b=value) == want


def test_two_slots_share_no_address() -> None:
    first, first_holder = take_slot()
    second, second_holder = take_slot()
    with second_holder:
        assert first != second
        assert {first.loopback, first.host_address, first.node_address}.isdisjoint(
            {second.loopback, second.host_address, second.node_address}
        )
        first_holder.close()


def test_the_longest_device_name_is_one_that_linux_takes() -> None:
    assert len(Slot(250).host_device) <= 15  # IFNAMSIZ less its final zero byte


def test_a_lock_is_held_by_all_who_share_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    one, other = take_shared(path, create=True), take_shared(path)

    one.release()
    assert is_held(path)
    assert try_exclusive(path) is None

    other.release()
    assert not is_held(path)


def test_a_lock_that_is_not_there_is_neither_held_nor_made(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "lock")
    with pytest.raises(FileNotFoundError):
        take_shared(tmp_path / "lock")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_may_be_released_twice(tmp_path: Path) -> None:
    lock = take_exclusive(tmp_path / "lock")
    lock.release()
    lock.release()


def test_the_state_of_a_cluster_that_has_said_nothing_is_starting(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    assert load_state(folder).phase is Phase.STARTING

    state = ClusterState(phase=Phase.FAILED, message="no", died={"etcd": -9}, started_seconds={"etcd": 1.5})
    save_state(folder, state)
    assert load_state(folder) == state


MOUNT_TABLE = r"""24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 24 0:26 / /run rw,nosuid - tmpfs tmpfs rw
31 24 0:27 / /cache/clusters/abc/data/kubelet rw - tmpfs tmpfs rw
32 24 0:28 / /cache/clusters/abcd rw - tmpfs tmpfs rw
33 24 0:29 / /cache/clusters/abc/with\040blank rw - tmpfs tmpfs rw
"""


def test_mounts_below_a_folder_are_found_and_no_others() -> None:
    got = mounts_below(Path("/cache/clusters/abc"), MOUNT_TABLE)

    assert got == ["/cache/clusters/abc/data/kubelet", "/cache/clusters/abc/with blank"]


@pytest.mark.parametrize(
    "files, want",
    [
        (["cgroup.controllers", "cgroup.procs"], ["."]),
        (["memory/cgroup.procs", "cpu/cgroup.procs", "unified/cgroup.controllers", "empty/x"], ["cpu", "memory"]),
    ],
    ids=["version 2 has one root", "version 1 has one for each controller"],
)
def test_control_group_roots(tmp_path: Path, files: list[str], want: list[str]) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()

    assert cgroup_roots(tmp_path) == [tmp_path / name for name in want]


def test_a_relative_cache_folder_is_ignored_as_the_standard_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert cache_root() == Path.home() / ".cache" / "multigraft"

    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_root() == Path("/somewhere/multigraft")


def test_the_choice_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2E_CLUSTER", raising=False)
    assert chosen_cluster() is Choice.OWN

    monkeypatch.setenv("E2E_CLUSTER", "kindd")
    with pytest.raises(ValueError, match="E2E_CLUSTER=kindd: must be one of own, kind, existing"):
        chosen_cluster()


def test_a_kubeconfig_alone_chooses_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("E2E_CLUSTER", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "production"))
    assert chosen_cluster() is Choice.OWN

    with pytest.raises(ValueError, match="production must name a file"):
        existing_cluster()


def test_available_memory_is_read_in_bytes() -> None:
    table = "MemTotal:       24684100 kB\nMemAvailable:   10485760 kB\nHugePages_Total:       0\n"

    assert available_bytes(table) == 10 * 2**30
