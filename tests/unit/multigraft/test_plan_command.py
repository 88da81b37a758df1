from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from builders.tiny_base import make_tiny_base
from multigraft.cli import main

POOL = """
apiVersion: multigraft.dev/v1alpha1
kind: BaseModelPool
metadata: {name: tiny}
spec:
  baseModel: {storageUri: base}
  gpu: {accelerators: [{name: CPU}]}
  slots: {max: 2}
  batching: {maxTokensPerMicrobatch: 256}
"""
JOB = """
---
apiVersion: multigraft.dev/v1alpha1
kind: AdapterJob
metadata: {name: NAME}
spec:
  poolRef: {name: tiny}
  dataset: {storageUri: NAME.jsonl, format: Text}
  training: {maxSteps: 6, globalBatchSize: 3, maxSeqLength: 256}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    jobs = "".join(JOB.replace("NAME", name) for name in ("short", "long", "third"))
    (tmp_path / "all.yaml").write_text(POOL + jobs)
    (tmp_path / "lengths.json").write_text(
        json.dumps({"short": [10, 20, 30, 40], "default/long": [200, 100, 150], "third": [60]})
    )
    return tmp_path


def plan(*words: str) -> Result:
    return CliRunner().invoke(main, ["plan", *words], env={"COLUMNS": "80"})


def test_tables_for_one_to_eight_stages(folder: Path) -> None:
    result = plan(str(folder), "--lengths", str(folder / "lengths.json"))
    assert result.exit_code == 0, result.output
    assert "Jobs on 1 stage" in result.output
    assert "default/long" in result.output
    assert "Plans: 1 proved best, 1 greedy; " in result.output
    assert "% above the bound; no solver asked" in result.output
    first_words = [line.split()[0] for line in result.output.splitlines() if line.strip()]
    assert first_words[-8:] == list("12345678")
    assert "…" not in result.output, "the tables fit a terminal of 80 columns"


def test_json_for_machines(folder: Path) -> None:
    result = plan(
        str(folder), "--lengths", str(folder / "lengths.json"), "--json", "--tile", "16", "--solver-timeout", "5"
    )
    assert result.exit_code == 0, result.output
    stages = json.loads(result.output)["stages"]
    assert [one["numStages"] for one in stages] == list(range(1, 9))
    first = stages[0]
    assert first["numMicrobatches"] >= first["lowerBound"] > 0
    assert 0 < first["fill"] <= 1
    assert 0 < first["paddingShare"] < 1
    assert first["bubbleRatio"] == pytest.approx(0, abs=1e-9)
    assert sum(first["outcomes"].values()) == first["numPlans"]
    assert {job["job"]: job["totalSteps"] for job in first["jobs"]} == {
        "default/short": 6,
        "default/long": 6,
        "default/third": 6,
    }


def test_auto_is_planned_with_an_assumed_capacity_and_says_so(folder: Path) -> None:
    manifest = folder / "all.yaml"
    manifest.write_text(manifest.read_text().replace("maxTokensPerMicrobatch: 256", "maxTokensPerMicrobatch: Auto"))
    words = [str(folder), "--lengths", str(folder / "lengths.json"), "--json"]
    result = plan(*words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["stages"][0]["tokenCapacity"] == 8192
    assert result.stderr == (
        "note: pool default/tiny: spec.batching.maxTokensPerMicrobatch is Auto, which its trainer measures on the GPU; "
        "planned with an assumed 8192 tokens (--capacity gives another)\n"
    )
    told = plan(*words, "--capacity", "300")
    assert json.loads(told.stdout)["stages"][0]["tokenCapacity"] == 300
    assert told.stderr == ""


def test_a_picture_of_the_pipeline(folder: Path) -> None:
    picture = folder / "pipeline.png"
    result = plan(
        str(folder),
        "--lengths",
        str(folder / "lengths.json"),
        "--stages",
        "3",
        "--replicas",
        "2",
        "--picture",
        str(picture),
    )
    assert result.exit_code == 0, result.output
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width > 1000
    assert height > 300


def test_measured_times_of_each_stage_plan_for_that_number_alone(folder: Path) -> None:
    cost = folder / "cost.json"
    cost.write_text('{"stageShares": [0.5, 0.5]}')
    result = plan(
        str(folder), "--lengths", str(folder / "lengths.json"), "--cost", str(cost), "--stages", "2", "--json"
    )
    assert [one["numStages"] for one in json.loads(result.output)["stages"]] == [2]


def test_lengths_are_counted_with_the_tokenizer_without_weights(folder: Path) -> None:
    base = make_tiny_base(folder / "base")
    for weights in base.glob("*.safetensors"):
        weights.unlink()
    for name in ("short", "long", "third"):
        rows = [json.dumps({"text": "word " * (5 + i)}) for i in range(4)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    result = plan(str(folder), "--json", "--stages", "1")
    assert result.exit_code == 0, result.output
    assert {job["numSamples"] for job in json.loads(result.output)["stages"][0]["jobs"]} == {4}


@pytest.mark.parametrize(
    "lengths, words, want",
    [
        ({"short": [10], "long": [10]}, [], "no entry 'default/third'"),
        ({"short": [300], "long": [10], "third": [10]}, ["--capacity", "128"], "a microbatch takes 128"),
        ({"short": [1], "long": [1], "third": [1]}, ["--pool", "other"], "want a BaseModelPool other, found tiny"),
        (
            {"short": [1], "long": [1], "third": [1]},
            ["--solver-timeout", "nan"],
            "nan is not in the range",
        ),
        (
            {"short": [1], "long": [1], "third": [1]},
            ["--picture", "/no/such/folder/p.png"],
            "No such file or directory",
        ),
        ({"short": [1], "long": [1], "third": [1]}, ["--lengths", "/dev/zero"], "/dev/zero: not a regular file"),
        ({"short": [1], "long": [1], "third": [1]}, ["--tile", "300"], "token_capacity: got 256, allowed 300"),
    ],
)
def test_wrong_input_is_one_clear_line_and_exit_code_2(
    folder: Path, lengths: dict[str, list[int]], words: list[str], want: str
) -> None:
    (folder / "lengths.json").write_text(json.dumps(lengths))
    result = plan(str(folder), "--lengths", str(folder / "lengths.json"), *words)
    assert result.exit_code == 2
    assert want in result.output
    assert "Traceback" not in result.output


def test_lengths_nested_too_deeply_are_refused(folder: Path) -> None:
    (folder / "lengths.txt").write_text("[" * 100_000)
    result = plan(str(folder), "--lengths", str(folder / "lengths.txt"))
    assert result.exit_code == 2
    assert "nested too deeply" in result.output


def test_a_missing_dataset_names_its_job(folder: Path) -> None:
    make_tiny_base(folder / "base")
    result = plan(str(folder))
    assert result.exit_code == 2
    assert "job default/short" in result.output


def test_wrong_manifests_are_said_as_validate_says_them(folder: Path) -> None:
    (folder / "all.yaml").write_text(POOL.replace("max: 2", "max: 0"))
    result = plan(str(folder))
    assert result.exit_code == 2
    assert "spec.slots.max" in result.output


def test_suspended_jobs_are_not_planned(folder: Path) -> None:
    text = (
        (folder / "all.yaml")
        .read_text()
        .replace("metadata: {name: third}\nspec:", "metadata: {name: third}\nspec:\n  suspend: true")
    )
    (folder / "all.yaml").write_text(text)
    result = plan(str(folder), "--lengths", str(folder / "lengths.json"), "--json")
    assert {job["job"] for job in json.loads(result.output)["stages"][0]["jobs"]} == {"default/short", "default/long"}


def test_jobs_of_other_pools_are_left_out(folder: Path) -> None:
    text = (folder / "all.yaml").read_text()
    other = POOL.replace("name: tiny", "name: other") + JOB.replace("NAME", "far").replace(
        "{name: tiny}", "{name: other}"
    )
    (folder / "all.yaml").write_text(text + "---" + other)
    lengths = {"short": [1], "long": [1], "third": [1], "far": [1]}
    (folder / "lengths.json").write_text(json.dumps(lengths))
    result = plan(str(folder), "--pool", "other", "--lengths", str(folder / "lengths.json"), "--json")
    assert result.exit_code == 0, result.output
    assert {job["job"] for job in json.loads(result.output)["stages"][0]["jobs"]} == {"default/far"}


def test_rows_of_a_config_map_are_counted_too(folder: Path) -> None:
    make_tiny_base(folder / "base")
    job = JOB.replace("NAME", "mapped").replace("storageUri: mapped.jsonl", "configMapRef: {name: rows, key: a.jsonl}")
    rows = "".join(f'    {{"text": "word {i}"}}\n' for i in range(5))
    config_map = "\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: rows}\ndata:\n  a.jsonl: |\n" + rows
    (folder / "all.yaml").write_text(POOL + job + config_map)
    result = plan(str(folder), "--json", "--stages", "1")
    assert result.exit_code == 0, result.output
    assert [one["numSamples"] for one in json.loads(result.output)["stages"][0]["jobs"]] == [5]


def test_a_pool_without_jobs_is_said(folder: Path) -> None:
    (folder / "all.yaml").write_text(POOL)
    result = plan(str(folder), "--lengths", str(folder / "lengths.json"))
    assert result.exit_code == 2
    assert "no AdapterJob for the pool default/tiny" in result.output
