from __future__ import annotations

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from builders.intake import tiny_tokenizer
from multigraft_trainer.intake.mask import build_mask


def mask(offsets: list[tuple[int, int]], *spans: tuple[int, int]) -> list[bool]:
    return [bool(value) for value in build_mask(np.asarray(offsets, dtype=np.int64).reshape(-1, 2), spans)]


@pytest.mark.parametrize(
    "offsets, spans, want",
    [
        pytest.param([(0, 1), (1, 2), (2, 3), (3, 4)], [(1, 3)], [0, 1, 1, 0], id="whole tokens"),
        pytest.param([(0, 2), (2, 5), (5, 6)], [(3, 6)], [0, 1, 1], id="a token over the start"),
        pytest.param([(0, 2), (2, 4), (4, 7)], [(2, 5)], [0, 1, 1], id="a token over the end"),
        pytest.param([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], [(1, 2), (3, 4)], [0, 1, 0, 1, 0], id="two spans"),
        pytest.param([(0, 1), (1, 2)], [(0, 2)], [0, 1], id="the first token has nothing to predict it"),
        pytest.param([(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)], [(1, 2)], [0, 1, 1, 1, 0], id="bytes of one character"),
        pytest.param([(0, 0), (0, 2), (2, 4)], [(0, 4)], [0, 1, 1], id="a token that is not in the text"),
        pytest.param([(0, 1), (1, 3), (5, 5), (5, 7)], [(3, 5)], [0, 0, 1, 0], id="trimmed white space inside"),
        pytest.param([(0, 1), (3, 3), (3, 7)], [(3, 7)], [0, 0, 1], id="trimmed white space before"),
        pytest.param([(0, 1), (1, 3), (5, 5)], [(1, 5)], [0, 1, 1], id="trimmed white space at the end"),
        pytest.param([(0, 1), (1, 2)], [], [0, 0], id="no span"),
        pytest.param([], [(0, 1)], [], id="no token"),
    ],
)
def test_tokens_of_spans(offsets: list[tuple[int, int]], spans: list[tuple[int, int]], want: list[int]) -> None:
    assert mask(offsets, *spans) == [bool(value) for value in want]


def merging_tokenizer(trim_offsets: bool) -> Tokenizer:
    """Build a byte-level tokenizer that merges line ends, spaces and words over turn boundaries."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ċ", "Ċ"), ("Ġ", "Ġ"), (":", "Ġ"), ("ĊĊ", "a"), ("Ġ", "a"), (":Ġ", "a"), ("a", "n")]
    vocab = {name: index for index, name in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False)])
    return tokenizer


@pytest.mark.parametrize("trim_offsets", [False, True])
@pytest.mark.parametrize("answer", ["an", "  an", "\nan", "an  ", " ", "😀 é", "a\n\n"])
def test_a_token_over_the_boundary_is_learnt_and_none_is_lost(answer: str, trim_offsets: bool) -> None:
    text = f"User: a\nAssistant: {answer}<|im_end|>\n"
    start = text.index("Assistant: ") + len("Assistant: ")
    end = start + len(answer + "<|im_end|>")
    tokenizer = merging_tokenizer(trim_offsets)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    kept = build_mask(np.asarray(encoding.offsets), [(start, end)])
    got = tokenizer.decode(
        [token for token, keep in zip(encoding.ids, kept, strict=True) if keep], skip_special_tokens=False
    )
    # what straddles is the space of the header, at most; the line end after the turn is never learnt
    assert got.removeprefix(":").removeprefix(" ") in {answer + "<|im_end|>", (answer + "<|im_end|>").removeprefix(" ")}
    assert got.endswith(answer + "<|im_end|>")


def test_a_normaliser_that_changes_lengths_keeps_the_mask_on_the_answer() -> None:
    tokenizer = Tokenizer.from_str(tiny_tokenizer().backend.to_str())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("q", "QQQ")])
    text = "qqﬃ|ﬃe\u0301q|q"
    start, end = text.index("|"), text.rindex("|")
    encoding = tokenizer.encode(text)
    kept = build_mask(np.asarray(encoding.offsets), [(start + 1, end)])
    got = tokenizer.decode([token for token, keep in zip(encoding.ids, kept, strict=True) if keep])
    assert got == "ffiéQQQ"
