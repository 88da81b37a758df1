from __future__ import annotations

from pathlib import Path

import pytest

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.storage.roots import StorageRoots

READ, WRITE = "spec.dataset.storageUri", "spec.output.storageUri"


@pytest.fixture
def roots(tmp_path: Path) -> StorageRoots:
    for name in ("data", "data-other", "out", "shared"):
        (tmp_path / name).mkdir()
    allowed = (str(tmp_path / "shared"), "s3://bucket/team-a", "hf://datasets/owner")
    return StorageRoots.build(
        read_base=tmp_path / "data", write_base=tmp_path / "out", allowed=allowed, namespace="team-a"
    )


def refusal(roots: StorageRoots, uri: str, *, write: bool = False) -> str:
    with pytest.raises(RefusalError) as caught:
        roots.check_write(uri, field=WRITE) if write else roots.check_read(uri, field=READ)
    assert caught.value.reason == Reason.STORAGE_NOT_ALLOWED
    assert caught.value.message.startswith(WRITE if write else READ)
    return caught.value.message


def test_relative_paths_are_read_below_the_storage_root_and_written_below_the_output_root(
    roots: StorageRoots, tmp_path: Path
) -> None:
    assert roots.check_read("a/b.jsonl", field=READ).path == str(tmp_path / "data/a/b.jsonl")
    assert roots.check_write("adapters/team-a/x", field=WRITE).path == str(tmp_path / "out/adapters/team-a/x")


@pytest.mark.parametrize("form", ["{}", "file://{}"])
@pytest.mark.parametrize("place", ["data/a", "out/a", "shared/deep/a", "out/adapters/team-a/a"])
def test_absolute_places_inside_any_root_may_be_read(
    roots: StorageRoots, tmp_path: Path, place: str, form: str
) -> None:
    assert roots.check_read(form.format(tmp_path / place), field=READ).path == str(tmp_path / place)


@pytest.mark.parametrize("place", ["data-other/a", "", "other", "../etc/passwd"])
def test_places_outside_are_refused_with_what_is_allowed(roots: StorageRoots, tmp_path: Path, place: str) -> None:
    message = refusal(roots, f"/{tmp_path.name}/{place}")
    assert "s3://bucket/team-a" in message or "`..`" in message
    refusal(roots, str(tmp_path / "data-other"))
    refusal(roots, "/etc/passwd")
    refusal(roots, "file:///etc/passwd")


def test_K01_links_are_followed_before_the_check(roots: StorageRoots, tmp_path: Path) -> None:
    (tmp_path / "data/inside").symlink_to(tmp_path / "shared")
    (tmp_path / "data/outside").symlink_to("/etc")
    (tmp_path / "data/hop").symlink_to(tmp_path / "data/outside/hostname")
    (tmp_path / "data/dangling").symlink_to(tmp_path / "nowhere/file")
    (tmp_path / "data/loop").symlink_to(tmp_path / "data/loop")
    (tmp_path / "out/away").symlink_to(tmp_path / "data-other")
    assert roots.check_read("inside/a", field=READ).path == str(tmp_path / "shared/a")
    for uri in ("outside/passwd", "hop", "dangling"):
        assert "links followed" in refusal(roots, uri)
    assert roots.check_read("loop", field=READ).path == str(tmp_path / "data/loop")  # cannot be opened; not a way out
    assert "links followed" in refusal(roots, "away/x", write=True)


def test_a_root_that_is_a_link_is_the_folder_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    roots = StorageRoots.build(read_base=tmp_path / "link", write_base=tmp_path / "link/out", namespace="a")
    assert roots.check_read("x", field=READ).path == str(tmp_path / "real/x")
    assert roots.check_read(str(tmp_path / "real/x"), field=READ).path == str(tmp_path / "real/x")


def test_remote_places_are_held_to_their_roots_part_by_part(roots: StorageRoots) -> None:
    assert roots.check_read("s3://bucket/team-a/x.jsonl", field=READ).path == "bucket/team-a/x.jsonl"
    assert roots.check_read("S3://bucket/team-a/x.jsonl", field=READ).place.scheme == "s3"
    for uri in ("s3://bucket/team-ab/x", "s3://bucket", "s3://other/team-a/x", "gs://bucket/team-a/x"):
        assert "outside the allowed storage" in refusal(roots, uri)


def test_the_hub_is_read_only(roots: StorageRoots) -> None:
    assert roots.check_read("hf://datasets/owner/name/x.jsonl", field=READ).place.scheme == "hf"
    assert "read only" in refusal(roots, "hf://datasets/owner/name/x", write=True)


def test_K07_adapters_of_another_namespace_are_neither_read_nor_written(roots: StorageRoots) -> None:
    for uri in ("adapters/team-b/x", "adapters/team-b", "adapters", "adapters/team-a-b/x"):
        assert "adapters/team-a/..." in refusal(roots, uri, write=True)
        absolute = f"{roots.write_base.path}/{uri}"
        assert "other namespaces" in refusal(roots, absolute)
    assert roots.check_read(f"{roots.write_base.path}/adapters/team-a/x", field=READ).is_local


def test_the_folder_of_all_own_adapters_may_be_read_but_is_no_output(roots: StorageRoots) -> None:
    assert "folder of all adapters of team-a" in refusal(roots, "adapters/team-a", write=True)
    assert roots.check_read(f"{roots.write_base.path}/adapters/team-a", field=READ).is_local


@pytest.mark.parametrize(
    "uri",
    [
        "checkpoints",
        "checkpoints/team-a",
        "checkpoints/team-a/x",
        "checkpoints/jobs/team-a/x",
        "checkpoints/jobs/team-b/x",
        "checkpoints/pool",
        "cache",
        "cache/x",
        "plans/x",
        "result.json",
        "run.json/x",
    ],
)
def test_K07_what_belongs_to_the_run_is_neither_read_nor_written(roots: StorageRoots, uri: str) -> None:
    assert "of the run itself" in refusal(roots, uri, write=True)
    assert "of the run itself" in refusal(roots, f"{roots.write_base.path}/{uri}")


def test_K07_private_folders_inside_an_allowed_root_are_closed_and_so_is_what_holds_them(tmp_path: Path) -> None:
    (tmp_path / "shared/state/ckpt").mkdir(parents=True)
    (tmp_path / "shared/link").symlink_to(tmp_path / "shared/state/ckpt")
    roots = StorageRoots.build(
        read_base=tmp_path / "data",
        write_base=tmp_path / "out",
        allowed=(str(tmp_path / "shared"),),
        namespace="team-a",
        private=(tmp_path / "shared/state/ckpt",),
    )
    for place in ("state/ckpt", "state/ckpt/jobs/x", "link", "link/x"):
        assert "of the run itself" in refusal(roots, str(tmp_path / "shared" / place))
        assert "of the run itself" in refusal(roots, str(tmp_path / "shared" / place), write=True)
    assert "has checkpoints" in refusal(roots, str(tmp_path / "shared/state"), write=True)
    assert roots.check_write(str(tmp_path / "shared/state/ckpt-2"), field=WRITE).is_local


def test_a_folder_that_holds_a_storage_root_is_no_output(tmp_path: Path) -> None:
    roots = StorageRoots.build(
        read_base=tmp_path,
        write_base=tmp_path / "out",
        allowed=(str(tmp_path / "out/a/b"),),
        namespace="team-a",
    )
    assert "root itself" in refusal(roots, "a", write=True)
    assert roots.check_write("a/b/c", field=WRITE).is_local


def test_an_output_may_not_bear_the_name_of_a_temporary_folder(roots: StorageRoots) -> None:
    for name in (".tmp-0123456789abcdef", ".trash-1"):
        assert "temporary" in refusal(roots, f"adapters/team-a/{name}", write=True)


def test_checkpoints_of_a_pool_stay_in_its_namespace_and_out_of_the_adapters(roots: StorageRoots) -> None:
    def refuse(uri: str) -> str:
        with pytest.raises(RefusalError) as caught:
            roots.check_checkpoints(uri, field="spec.checkpoint.storageUri")
        assert caught.value.reason == Reason.STORAGE_NOT_ALLOWED
        return caught.value.message

    for uri in ("checkpoints/team-a", "checkpoints/team-a/deep", "other", str(roots.allowed[0].path) + "/x"):
        assert roots.check_checkpoints(uri, field="spec.checkpoint.storageUri").is_local
    for uri in ("checkpoints", "checkpoints/team-b", "checkpoints/jobs"):
        assert "checkpoints/team-a" in refuse(uri)
    assert "adapters" in refuse("adapters/team-a/x")
    assert "of the run itself" in refuse("cache/x")
    assert "root itself" in refuse(".")
    assert "outside" in refuse("/etc")


def test_a_link_in_an_own_folder_gives_no_way_into_another_s(roots: StorageRoots, tmp_path: Path) -> None:
    (tmp_path / "out/adapters/team-b/x").mkdir(parents=True)
    (tmp_path / "out/adapters/team-a").mkdir(parents=True)
    (tmp_path / "out/adapters/team-a/link").symlink_to(tmp_path / "out/adapters/team-b/x")
    assert "other namespaces" in refusal(roots, "adapters/team-a/link", write=True)


def test_roots_are_not_written_themselves_and_data_not_at_all(roots: StorageRoots, tmp_path: Path) -> None:
    for uri in ("", ".", str(tmp_path / "out"), "s3://bucket/team-a", str(tmp_path / "shared")):
        assert "root itself" in refusal(roots, uri, write=True)
    assert "outside" in refusal(roots, str(tmp_path / "data/x"), write=True)


def test_a_remote_output_root_takes_relative_paths(tmp_path: Path) -> None:
    roots = StorageRoots.build(read_base=tmp_path, write_base="gs://bucket/out", namespace="a")
    assert roots.check_write("adapters/a/x", field=WRITE).path == "bucket/out/adapters/a/x"
    refusal(roots, "adapters/b/x", write=True)


@pytest.mark.parametrize("root", ["relative/path", "s3://bucket/*", "https://host/a", "/a/../b"])
def test_roots_must_be_well_formed(tmp_path: Path, root: str) -> None:
    with pytest.raises(RefusalError) as caught:
        StorageRoots.build(read_base=tmp_path, write_base=tmp_path, allowed=(root,), namespace="a")
    assert caught.value.message.startswith("spec.storage.allowedRoots")


def test_refusals_stay_short_with_many_roots(tmp_path: Path) -> None:
    allowed = tuple(f"s3://bucket-{index}/{'x' * 200}" for index in range(32))
    roots = StorageRoots.build(read_base=tmp_path, write_base=tmp_path / "o", allowed=allowed, namespace="a")
    message = refusal(roots, "s3://" + "y" * 900)
    assert len(message) < 500
    assert "and 30 more" in message
