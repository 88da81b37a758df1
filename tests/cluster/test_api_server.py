"""The real API server takes our kinds, and says what local validation says."""

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builders.manifest_table import ROWS, UPDATES, Row, UpdateRow
from builders.manifest_text import job_text, pool_text
from cluster.access import ClusterAccess, CommandError
from cluster.requests import Answer, Requests

CRDS = Path(__file__).parents[2] / "crds"
KINDS = ("adapterjobs.multigraft.dev", "basemodelpools.multigraft.dev")
WRITTEN_PLACE = "namespace: team-a"  # in the table's manifests


@pytest.fixture(scope="module")
def with_kinds(api_server: ClusterAccess) -> ClusterAccess:
    """Give an API server that knows our kinds."""
    api_server.kubectl("apply", "--server-side", f"--filename={CRDS}")
    established = ("--for=condition=Established", "--timeout=60s")
    api_server.kubectl("wait", *established, *(f"crd/{kind}" for kind in KINDS))
    return api_server


@pytest.fixture(scope="module")
def place(with_kinds: ClusterAccess) -> Iterator[str]:
    """Give a namespace of this worker's own, to stand in the table's manifests in place of theirs."""
    name = f"t-{secrets.token_hex(4)}"
    with_kinds.kubectl("create", "namespace", name)
    yield name
    with_kinds.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def requests(with_kinds: ClusterAccess) -> Iterator[Requests]:
    with Requests(with_kinds) as requests:
        yield requests


def test_the_api_server_is_the_version_that_was_built(api_server: ClusterAccess) -> None:
    got = json.loads(api_server.kubectl("version", "--output=json"))

    assert got["serverVersion"]["gitVersion"].startswith("v1.")
    assert got["clientVersion"]["gitVersion"].startswith("v1.")


def test_crds_are_established_and_accept_themselves_a_second_time(with_kinds: ClusterAccess) -> None:
    with_kinds.kubectl("apply", "--server-side", f"--filename={CRDS}")

    crds = json.loads(with_kinds.kubectl("get", "crd", *KINDS, "--output=json"))["items"]
    unmet = [
        (crd["metadata"]["name"], condition)
        for crd in crds
        for condition in crd["status"]["conditions"]
        if (condition["type"], condition["status"]) not in {("NamesAccepted", "True"), ("Established", "True")}
    ]
    assert len(crds) == len(KINDS)
    assert unmet == []  # such as NonStructuralSchema


def test_crds_are_small_enough_for_client_side_apply(with_kinds: ClusterAccess) -> None:
    with_kinds.kubectl("apply", f"--filename={CRDS}", "--dry-run=server")


def test_good_manifests_are_accepted_and_get_their_defaults(
    with_kinds: ClusterAccess, namespace: Callable[..., str]
) -> None:
    own = namespace(with_kinds)
    manifests = "---\n".join((pool_text(namespace=own), job_text(namespace=own)))
    with_kinds.kubectl("apply", "--validate=strict", "--filename=-", text=manifests)

    job = json.loads(with_kinds.kubectl("get", "adapterjob", "support", f"--namespace={own}", "--output=json"))
    assert job["spec"]["lora"]["loraAlpha"] == "16"
    assert job["spec"]["dataset"]["format"] == "Conversational"


def test_kubectl_refuses_a_bad_job_and_names_the_field(with_kinds: ClusterAccess, place: str) -> None:
    with pytest.raises(CommandError, match=r"spec\.lora\.r"):
        with_kinds.kubectl("apply", "--filename=-", text=job_text(namespace=place, lora="r: 0"))


@pytest.mark.parametrize(
    "field", ["adapterjob.spec.lora.loraAlpha", "adapterjob.status.conditions", "basemodelpool.spec.slots.maxRank"]
)
def test_kubectl_explains_a_field(with_kinds: ClusterAccess, field: str) -> None:
    got = with_kinds.kubectl("explain", field)

    description = got.partition("DESCRIPTION:")[2].strip()
    assert description
    assert not description.startswith("<empty>")


# A request is sent to the place of its version and kind, so that neither can be wrong in it.
SENDABLE = [row for row in ROWS if row.field not in {"apiVersion", "kind"}]


@pytest.mark.parametrize("row", SENDABLE, ids=lambda row: row.id)
def test_the_table_of_manifests(requests: Requests, place: str, row: Row) -> None:
    got = requests.create(row.text.replace(WRITTEN_PLACE, f"namespace: {place}"))

    _check(got, None if row.is_local else row.field)


@pytest.mark.parametrize("row", UPDATES, ids=lambda row: row.id)
def test_the_table_of_changes(requests: Requests, place: str, row: UpdateRow) -> None:
    old, new = (text.replace(WRITTEN_PLACE, f"namespace: {place}") for text in (row.old, row.new))
    with requests.applied(old):
        got = requests.apply(new)

    assert got.accepted == (not row.fields), got.message
    for field in row.fields:
        _check(got, field)


def _check(got: Answer, field: str | None) -> None:
    assert got.accepted == (field is None), got.message
    if field is not None and got.reached_fields:
        assert got.names(field), got.message
