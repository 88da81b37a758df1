"""Loading files and folders: what is reported, and how it reads."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.manifest_text import job_text, pool_text
from multigraft.manifests.collection import Manifests
from multigraft.manifests.load import load_manifests

CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: rows, namespace: team-a}\n"


def load(folder: Path, **files: str) -> Manifests:
    """Load a folder of files; `job_yaml="..."` is job.yaml."""
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return load_manifests([folder])


def lines(found: Manifests, folder: Path) -> list[str]:
    return [str(problem).replace(f"{folder}/", "") for problem in found.problems]


def notes(found: Manifests, folder: Path) -> list[str]:
    return [str(note).replace(f"{folder}/", "") for note in found.notes]


def test_good_folder(tmp_path: Path) -> None:
    found = load(tmp_path, a_yaml=pool_text(), b_yml=job_text() + "---\n" + job_text(name="other"), c_txt="not: [yaml")
    assert lines(found, tmp_path) == []
    assert notes(found, tmp_path) == []
    assert [pool.key for pool in found.pools] == ["team-a/tiny-pool"]
    assert [job.key for job in found.jobs] == ["team-a/support", "team-a/other"]
    assert found.origins["AdapterJob", "team-a/other"].file == tmp_path / "b.yml"


def test_a_problem_is_one_line_that_says_where_which_field_and_what_is_wanted(tmp_path: Path) -> None:
    text = job_text() + "---\n" + job_text(name="x", training="maxSteps: 10\nlearningRate: 1e-4")
    where = "job.yaml: document 2, line 28 (AdapterJob team-a/x): spec.training.learningRate"
    want = f'{where}: got number 0.0001 (written 1e-4), want a quoted decimal string > 0 such as "1e-4"'
    assert lines(load(tmp_path, a_yaml=pool_text(), job_yaml=text), tmp_path) == [want]


def test_all_problems_of_all_objects_are_told_at_once(tmp_path: Path) -> None:
    bad = job_text(
        pool="poolRef: {name: Tiny}",
        dataset="format: text",
        lora='r: "8"\nloraDropout: "1.5"\nrank: 8',
        training="maxSteps: 3\nwarmupSteps: 4\nlearningRate: 0.1",
        more="suspend: maybe",
    )
    found = load(tmp_path, a_yaml=bad + "---\n" + pool_text(base="revision: 1"))
    assert [problem.field for problem in found.problems] == [
        "spec.poolRef.name",
        "spec.dataset",
        "spec.dataset.format",
        "spec.lora.r",
        "spec.lora.loraDropout",
        "spec.lora.rank",
        "spec.training.warmupSteps",
        "spec.training.learningRate",
        "spec.suspend",
        "spec.baseModel.revision",
    ]


def test_the_same_object_twice_names_the_other_place(tmp_path: Path) -> None:
    twice = pool_text() + "---\n" + pool_text(namespace="team-b")
    (problem,) = load(tmp_path, a_yaml=pool_text(), b_yaml=twice).problems
    assert (problem.file, problem.line, problem.field) == (str(tmp_path / "b.yaml"), 4, "metadata.name")
    assert problem.message == f"team-a/tiny-pool is also in {tmp_path}/a.yaml: document 1"


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(pool_text())
    assert load_manifests([tmp_path / "a.yaml", tmp_path, tmp_path / "." / "a.yaml"]).problems == []


def test_objects_of_other_kinds_are_passed_over_with_a_note(tmp_path: Path) -> None:
    found = load(tmp_path, a_yaml="apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {token: canary}\n")
    assert found.problems == []
    want = "a.yaml: document 1 (Secret default/s): passed over: not a kind that multigraft reads"
    assert notes(found, tmp_path) == [want]


def test_files_of_a_folder_that_are_no_manifests_are_passed_over(tmp_path: Path) -> None:
    rows = '{"text": "a"}\n{"text": "b"}\n'
    found = load(tmp_path, a_yaml=pool_text(), values_yaml="image: {tag: 1}\n", rows_json=rows)
    assert found.problems == []
    assert notes(found, tmp_path) == [
        "rows.json: passed over: no Kubernetes object in it",
        "values.yaml: passed over: no Kubernetes object in it",
    ]


def test_a_file_that_is_named_must_hold_manifests(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text("image: {tag: 1}\n")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    got = [problem.message for problem in load_manifests([tmp_path / "values.yaml", tmp_path / "empty.yaml"]).problems]
    assert got == ["no Kubernetes object: want apiVersion, kind, metadata and spec", "no object in it"]


def test_a_broken_file_of_a_folder_is_a_problem(tmp_path: Path) -> None:
    assert lines(load(tmp_path, a_yaml="apiVersion:\n\tx\n"), tmp_path) == [
        "a.yaml: document 1, line 2: not YAML: a tab stands where blanks are wanted"
    ]


def test_an_empty_folder_is_a_problem(tmp_path: Path) -> None:
    assert load_manifests([tmp_path]).problems[0].message == "no file named *.yaml, *.yml, *.json"


@pytest.mark.parametrize("value", ["[]", "text", "[{kind: AdapterJob}]"])
def test_a_document_that_is_no_object(value: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(value)
    assert "no Kubernetes object" in load_manifests([tmp_path / "a.yaml"]).problems[0].message


def test_pool_that_is_not_there_is_a_note(tmp_path: Path) -> None:
    found = load(tmp_path, a_yaml=job_text(), b_yaml=pool_text(namespace="team-b"))
    assert found.problems == []
    where = "a.yaml: document 1 (AdapterJob team-a/support): spec.poolRef.name"
    hint = "team-b/tiny-pool is in another namespace, which a reference cannot reach"
    want = f"{where}: pool team-a/tiny-pool is not in these files ({hint}); not checked against it"
    assert notes(found, tmp_path) == [want]


def test_G11_job_that_does_not_fit_its_pool_names_both_numbers(tmp_path: Path) -> None:
    job = job_text(lora="r: 128", training="maxSteps: 1\nmaxSeqLength: 512")
    pool = pool_text(more="batching: {maxTokensPerMicrobatch: 128}")
    rank, length = load(tmp_path, a_yaml=job, b_yaml=pool).problems
    assert (rank.field, rank.line) == ("spec.lora.r", 11)
    assert rank.message == "128 is over slots.maxRank 64 of pool team-a/tiny-pool"
    assert (length.field, length.line) == ("spec.training.maxSeqLength", 14)
    assert length.message == "512 tokens do not fit batching.maxTokensPerMicrobatch 128 of pool team-a/tiny-pool"


def test_selected_job_is_good_if_one_pool_fits(tmp_path: Path) -> None:
    job = job_text(pool="poolSelector: {}", lora="r: 128")
    small, large = pool_text(name="small"), pool_text(name="large", more="slots: {maxRank: 128}")
    assert load(tmp_path, a_yaml=job, b_yaml=small).problems != []
    assert load(tmp_path, a_yaml=job, b_yaml=small, c_yaml=large).problems == []


def test_config_map_holds_the_bytes_of_its_keys(tmp_path: Path) -> None:
    binary = base64.b64encode(b"\x00\xff").decode()
    text = CONFIG_MAP + f"data:\n  a.jsonl: |\n    {{}}\n  empty: ''\nbinaryData: {{b.gz: {binary}}}\n"
    found = load(tmp_path, a_yaml=text)
    assert found.problems == []
    assert found.config_maps["team-a/rows"].files == {"a.jsonl": b"{}\n", "empty": b"", "b.gz": b"\x00\xff"}


@pytest.mark.parametrize(
    "data, field, says",
    [
        ("data: {a: 1}", "data.a", "got number 1, want text"),
        ("data: [a]", "data", "got a list of 1 items, want an object"),
        ("binaryData: {a: '%'}", "binaryData.a", "not base64"),
        ("data: {a: x}\nbinaryData: {a: eA==}", "binaryData.a", "in data and in binaryData"),
    ],
)
def test_bad_config_map(data: str, field: str, says: str, tmp_path: Path) -> None:
    (problem,) = load(tmp_path, a_yaml=CONFIG_MAP + data + "\n").problems
    assert problem.field == field
    assert says in problem.message


@pytest.mark.parametrize(
    "metadata", ["", "metadata: []", "metadata: {name: 1}", "metadata: {name: A_}", "metadata: {}"]
)
def test_config_map_without_a_good_name(metadata: str, tmp_path: Path) -> None:
    (problem,) = load(tmp_path, a_yaml=f"apiVersion: v1\nkind: ConfigMap\n{metadata}\n").problems
    assert problem.field.startswith("metadata")


def test_dataset_key_must_be_in_the_config_map(tmp_path: Path) -> None:
    job = job_text(dataset="configMapRef: {name: rows, key: b.jsonl}")
    found = load(tmp_path, a_yaml=pool_text(), b_yaml=job, c_yaml=CONFIG_MAP + "data: {a.jsonl: ''}\n")
    (problem,) = found.problems
    assert problem.field == "spec.dataset.configMapRef.key"
    assert problem.message == "key b.jsonl is not in ConfigMap team-a/rows, which has a.jsonl"


def test_dataset_config_map_that_is_not_there_is_a_note(tmp_path: Path) -> None:
    job = job_text(dataset="configMapRef: {name: rows, key: b.jsonl}")
    found = load(tmp_path, a_yaml=pool_text(), b_yaml=job)
    assert found.problems == []
    assert found.notes[0].message == "ConfigMap team-a/rows is not in these files; not checked"


def test_text_of_the_user_cannot_break_the_line_or_the_terminal(tmp_path: Path) -> None:
    text = job_text(more='"\\e[31m\\nred": 1\nbackoffLimit: "\\e[31m\\n3"')
    for problem in load(tmp_path, a_yaml=pool_text(), b_yaml=text).problems:
        assert str(problem).isprintable()


def test_fields_that_may_hold_secrets_are_not_repeated(tmp_path: Path) -> None:
    text = job_text(dataset="storageUri: a\nsecretRef: canary-token-123", more="token: canary-token-456")
    found = load(tmp_path, a_yaml=pool_text(), b_yaml=text)
    assert len(found.problems) == 2
    assert "canary" not in "".join(map(str, found.problems))


@given(st.one_of(st.text(), st.binary().map(lambda raw: raw.decode("latin-1"))))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused_without_a_traceback(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "a.yaml")
        file.write_text(text, encoding="utf-8", errors="surrogatepass")
        found = load_manifests([file])
        assert found.problems or found.notes
