from __future__ import annotations

import pytest

from multigraft_trainer.checkpoints.records import FileEntry, Manifest, NewerFormatError

SHA = "0" * 64


def test_a_record_comes_back_as_it_was() -> None:
    want = Manifest(files={"x": FileEntry(sha256=SHA, num_bytes=3)})

    assert Manifest.decode(want.encode()) == want
    assert want.encode() == Manifest.decode(want.encode()).encode()


@pytest.mark.parametrize(
    "data, want",
    [
        pytest.param(b"", "is no JSON", id="empty"),
        pytest.param(b"{", "is no JSON", id="cut short"),
        pytest.param(b"\xff", "is no JSON", id="no UTF-8"),
        pytest.param(b"[" * 100_000, "is no JSON", id="nested too deep"),
        pytest.param(b"[]", "Input should be an object", id="a list"),
        pytest.param(b"null", "Input should be an object", id="null"),
        pytest.param(b'{"format": 1}', "files: Field required", id="a field is missing"),
        pytest.param(b'{"format": 1, "files": {}, "more": 1}', "more: Extra inputs", id="a field too many"),
        pytest.param(b'{"format": 0, "files": {}}', "format: Input should be 1", id="another format"),
        pytest.param(
            b'{"format": 1, "files": {"x": {"sha256": "0", "numBytes": 1}}}', "files.x.sha256", id="a short hash"
        ),
        pytest.param(
            b'{"format": 1, "files": {"x": {"sha256": "' + SHA.encode() + b'", "numBytes": "1"}}}',
            "files.x.numBytes",
            id="a number as text",
        ),
        pytest.param(
            b'{"format": 1, "files": {"x": {"sha256": "' + SHA.encode() + b'", "numBytes": -1}}}',
            "files.x.numBytes",
            id="a negative size",
        ),
    ],
)
def test_anything_else_is_refused_and_says_where(data: bytes, want: str) -> None:
    with pytest.raises(ValueError, match=want):
        Manifest.decode(data)


def test_a_newer_format_is_its_own_error() -> None:
    with pytest.raises(NewerFormatError, match="format 7, this version reads 1"):
        Manifest.decode(b'{"format": 7, "anything": true}')
