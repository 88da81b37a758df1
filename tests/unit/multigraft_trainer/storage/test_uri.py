from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.storage.uri import ParsedUri, parse_uri, show_uri

FIELD = "spec.dataset.storageUri"


@pytest.mark.parametrize(
    "uri, want",
    [
        ("data/a.jsonl", ParsedUri("file", ("data", "a.jsonl"), is_relative=True)),
        ("./data//a.jsonl", ParsedUri("file", ("data", "a.jsonl"), is_relative=True)),
        ("/data/a.jsonl/", ParsedUri("file", ("data", "a.jsonl"), is_relative=False)),
        ("file:///data/a b.jsonl", ParsedUri("file", ("data", "a b.jsonl"), is_relative=False)),
        ("FILE:///data", ParsedUri("file", ("data",), is_relative=False)),
        ("s3://bucket/key.jsonl", ParsedUri("s3", ("bucket", "key.jsonl"), is_relative=False)),
        ("gs://bucket/a/b/", ParsedUri("gs", ("bucket", "a", "b"), is_relative=False)),
        ("hf://owner/name", ParsedUri("hf", ("owner", "name"), is_relative=False)),
        (
            "abfs://box@account.dfs.core.windows.net/a",
            ParsedUri("abfs", ("box@account.dfs.core.windows.net", "a"), is_relative=False),
        ),
        ("~/a", ParsedUri("file", ("~", "a"), is_relative=True)),
        ("a%2e%2e/b*[1]?.jsonl", ParsedUri("file", ("a%2e%2e", "b*[1]?.jsonl"), is_relative=True)),
        ("données/пример/例.jsonl", ParsedUri("file", ("données", "пример", "例.jsonl"), is_relative=True)),
        ("...", ParsedUri("file", ("...",), is_relative=True)),
        ("", ParsedUri("file", (), is_relative=True)),
    ],
)
def test_well_formed_uris(uri: str, want: ParsedUri) -> None:
    assert parse_uri(uri, field=FIELD) == want


@pytest.mark.parametrize(
    "uri, words",
    [
        ("../a", "`..`"),
        ("a/../../b", "`..`"),
        ("/a/..", "`..`"),
        ("file:///a/../b", "`..`"),
        ("s3://bucket/../other", "`..`"),
        ("a\x00b", "U+0000"),
        ("a\nb", "U+000A"),
        ("a\u202eb", "U+202E"),
        ("a\u2028b", "U+2028"),
        ("a\ud800b", "U+D800"),
        ("https://host/a", "'https'; allowed: a path, or one of file, s3, gs, hf, abfs"),
        ("http://169.254.169.254/latest", "allowed"),
        ("zip://a.jsonl::s3://bucket/b.zip", "'zip'"),
        ("simplecache::s3://bucket/a", "lies"),
        ("s3://bucket/a::zip://b", "pattern"),
        ("s3:/bucket/a", "s3://"),
        ("file:/etc/passwd", "file://"),
        ("file://host/a", "names a host"),
        ("s3://", "no bucket"),
        ("s3:///a", "no bucket"),
        ("s3://bucket//a", "empty path part"),
        ("s3://bucket/./a", "empty path part"),
        ("s3://bucket/*.jsonl", "pattern"),
        ("gs://bucket/[ab]", "pattern"),
        ("s3://bucket\\a", "backslash"),
        ("a\\b", "backslash"),
        ("a/%2E%2e/b", "`..`"),
        ("file:///a/%2e./b", "`..`"),
        ("s3://bucket/a%2f..%2fb", "`..`"),
        ("a%5Cb/..", "`..`"),
        ("s3://id:secret@bucket/a", "credentials"),
        ("s3://secret@bucket/a", "credentials"),
        ("s3://host:9000/a", "credentials or a port"),
    ],
)
def test_malformed_uris_are_refused_with_field_and_cause(uri: str, words: str) -> None:
    if words == "lies":  # no scheme as we read it: a relative path, which the roots then hold in
        assert parse_uri(uri, field=FIELD).is_relative
        return
    with pytest.raises(RefusalError) as caught:
        parse_uri(uri, field=FIELD)
    assert caught.value.reason == Reason.STORAGE_NOT_ALLOWED
    assert caught.value.message.startswith(FIELD)
    assert words in caught.value.message
    assert "secret" not in caught.value.message
    assert caught.value.message.isprintable()


@given(uri=st.text(max_size=60) | st.from_regex(r"(s3|gs|file|hf)://[a-z./@:*]{0,20}", fullmatch=True))
def test_whatever_is_parsed_cannot_climb(uri: str) -> None:
    try:
        parsed = parse_uri(uri, field=FIELD)
    except RefusalError as error:
        message = str(error)
    else:
        assert not {"", ".", ".."} & set(parsed.parts)
        assert all("/" not in part for part in parsed.parts)
        return
    assert len(message) < 400


def test_what_is_shown_is_short_and_free_of_credentials() -> None:
    assert show_uri("s3://id:key@b/a") == "'s3://***@b/a'"
    assert len(show_uri("x" * 1000)) < 130
    assert show_uri("a\u202eb") == "'a\\u202eb'"
