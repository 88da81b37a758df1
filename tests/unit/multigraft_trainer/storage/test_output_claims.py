from __future__ import annotations

import pytest

from multigraft.api.reasons import Reason
from multigraft_trainer.storage.output_claims import OutputClaim, Strength, refuse_overlaps
from multigraft_trainer.storage.roots import Location
from multigraft_trainer.storage.uri import parse_uri

HELD, DEFAULT, ASKED = Strength.HELD, Strength.DEFAULT, Strength.ASKED


def claim(job: str, uri: str, strength: Strength = ASKED) -> OutputClaim:
    field = "spec.output.storageUri"
    return OutputClaim(job, Location(uri, field, parse_uri(uri, field=field)), strength)


@pytest.mark.parametrize(
    "claims, want",
    [
        ([claim("a", "/o/x"), claim("b", "/o/y"), claim("c", "/o/xx")], []),
        ([claim("a", "/o/x"), claim("b", "/o/x")], ["b"]),
        ([claim("b", "/o/x"), claim("a", "/o/x/deeper")], ["a"]),
        ([claim("a", "/o/x/deeper"), claim("b", "/o/x")], ["b"]),
        ([claim("a", "/o/b"), claim("b", "/o/b", DEFAULT)], ["a"]),
        ([claim("a", "/o/b", DEFAULT), claim("b", "/o/b", HELD)], ["a"]),
        ([claim("a", "/o/x"), claim("b", "/o/x"), claim("c", "/o/x")], ["b", "c"]),
        ([claim("a", "/o/x", HELD), claim("a", "/o/x", DEFAULT)], []),
        ([claim("a", "s3://b/x"), claim("b", "gs://b/x"), claim("c", "/b/x")], []),
        ([claim("a", "s3://b/x"), claim("b", "s3://b/x/y")], ["b"]),
    ],
    ids=[
        "folders side by side",
        "the same folder: the first keeps it",
        "inside another's",
        "around another's",
        "another's default folder",
        "a default folder in which an adapter of another job lies",
        "three jobs",
        "a job does not meet itself",
        "the same path on other storage",
        "remote folders too",
    ],
)
def test_the_weaker_of_two_overlapping_claims_is_refused(claims: list[OutputClaim], want: list[str]) -> None:
    got = refuse_overlaps(claims)
    assert sorted(got) == want
    assert all(error.reason is Reason.INVALID_SPEC for error in got.values())


def test_the_refusal_names_both_jobs_and_both_folders() -> None:
    (error,) = refuse_overlaps([claim("ns/a", "/o/x"), claim("ns/b", "/o/x/y")]).values()
    for part in ("spec.output.storageUri of ns/b (/o/x/y)", "ns/a (/o/x)"):
        assert part in error.message
