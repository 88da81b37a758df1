"""Launch choices: measured tables parse, unknown devices get a rule, and nothing depends on the number of tokens."""

from __future__ import annotations

from importlib import resources

import pytest
import torch

from multigraft_kernels.launch import table
from multigraft_kernels.launch.choices import HopperGemmLaunch, LaunchChoice, PortableLaunch, ShrinkLaunch
from multigraft_kernels.launch.device_class import find_device_class
from multigraft_kernels.launch.table import (
    build_default,
    choose_launch,
    dump_choice,
    fit_rank,
    load_table,
    parse_choice,
)


def shipped_tables() -> list[str]:
    folder = resources.files("multigraft_kernels.launch") / "tables"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


def choose(name: str, K: int, N: int) -> LaunchChoice:
    return table._choose(name, K, N)


@pytest.mark.parametrize("name", shipped_tables())
def test_every_shipped_table_parses(name: str) -> None:
    entries = load_table(name)
    assert entries
    for entry in entries:
        choice = parse_choice(LaunchChoice, entry["launch"])
        assert choice.path in ("portable", "mixed", "hopper")
        assert entry["K"] > 0
        assert entry["N"] > 0


def test_a_choice_survives_its_json_form() -> None:
    choice = LaunchChoice("mixed", PortableLaunch(ShrinkLaunch(block_t=64)))
    assert parse_choice(LaunchChoice, dump_choice(choice)) == choice


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"HopperGemmLaunch has no fields \['warp'\]; allowed are \['block_o'"):
        parse_choice(HopperGemmLaunch, {"warp": 3})


@pytest.mark.parametrize(
    "name, want", [("cuda", "portable"), ("l40s", "portable"), ("h100", "mixed"), ("cpu", "portable")]
)
def test_a_device_without_table_gets_the_rule(name: str, want: str) -> None:
    assert load_table(name) == []
    assert choose(name, 4096, 4096) == build_default(name)
    assert choose(name, 4096, 4096).path == want


def test_a_table_of_another_version_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "TABLE_VERSION", 99)
    assert load_table("h200") == []


def test_the_nearest_measured_shape_lends_its_launches() -> None:
    wide = next(entry for entry in load_table("h200") if entry["N"] == 14336)
    assert choose("h200", 3584, 18944) == parse_choice(LaunchChoice, wide["launch"])


def test_the_all_gluon_path_is_chosen_by_a_table_alone() -> None:
    assert all(build_default(name).path != "hopper" for name in ("h100", "h200", "hopper", "cuda"))


def test_layers_that_tma_cannot_reach_take_the_portable_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "find_device_class", lambda _device: ("h200", True))
    b = torch.zeros(1, 96, 8, dtype=torch.bfloat16)

    def path(K: int, N: int, dtype: torch.dtype = torch.bfloat16) -> str:
        return choose_launch(torch.zeros(2, K, dtype=dtype), torch.zeros(N, K, dtype=dtype), b, 8).path

    assert path(64, 96) == "mixed"
    assert path(60, 96) == path(64, 90) == path(64, 96, torch.float32) == "portable"


def test_the_number_of_tokens_changes_nothing() -> None:
    weight, b = torch.zeros(96, 64), torch.zeros(1, 96, 8)
    assert len({choose_launch(torch.zeros(tokens, 64), weight, b, 8) for tokens in (1, 100, 8192)}) == 1


def test_large_ranks_shrink_the_other_blocks() -> None:
    plain = PortableLaunch()
    assert fit_rank(plain, 64) == plain
    assert fit_rank(plain, 65).grad_output.block_n == 128
    assert fit_rank(plain, 256).grad_output.block_n == 64


def test_a_cpu_is_no_hopper() -> None:
    assert find_device_class(torch.device("cpu")) == ("cpu", False)
