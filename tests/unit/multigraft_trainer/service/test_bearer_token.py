from __future__ import annotations

from pathlib import Path

import pytest

from multigraft.api.reasons import RefusalError
from multigraft_trainer.service.bearer_token import BearerToken

OLD, NEW = "canary-token-123-old", "canary-token-123-new"

HEADERS = {
    "the token": (f"Bearer {OLD}", True),
    "the scheme in other letters": (f"bearer {OLD}", True),
    "another token": (f"Bearer {NEW}", False),
    "a prefix of the token": (f"Bearer {OLD[:-1]}", False),
    "more than the token": (f"Bearer {OLD}x", False),
    "another scheme": (f"Basic {OLD}", False),
    "no scheme": (OLD, False),
    "nothing": ("", False),
    "no header": (None, False),
    "an empty token": ("Bearer ", False),
    "bytes that are no UTF-8": ("Bearer \udcff", False),
}


@pytest.mark.parametrize("header, want", HEADERS.values(), ids=HEADERS.keys())
def test_only_the_token_is_let_in(tmp_path: Path, header: str | None, want: bool) -> None:
    (tmp_path / "token").write_text(OLD + "\n")
    assert BearerToken(tmp_path / "token").admits(header) is want


def test_a_token_is_changed_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(OLD)
    token = BearerToken(file)
    file.write_text(f"{OLD}\n{NEW}\n")
    assert [token.admits(f"Bearer {given}") for given in (OLD, NEW)] == [True, True]
    file.write_text(NEW)
    assert [token.admits(f"Bearer {given}") for given in (OLD, NEW)] == [False, True]
    file.unlink()
    assert not token.admits(f"Bearer {NEW}")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"short\n"])
def test_a_file_without_a_usable_token_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(RefusalError, match="at least 16 bytes") as caught:
        BearerToken(tmp_path / "token")
    assert "short" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="No such file"):
        BearerToken(tmp_path / "token")
