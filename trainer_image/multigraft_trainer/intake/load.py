"""Load a dataset: from a file of rows to tokenised samples, before any model is touched."""

from __future__ import annotations

from pathlib import Path

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.intake.account import Account
from multigraft_trainer.intake.cache import build_key, hash_file, load_cached, save_cached
from multigraft_trainer.intake.file_name import shown_name
from multigraft_trainer.intake.options import IntakeOptions
from multigraft_trainer.intake.prepare import Preparation
from multigraft_trainer.intake.rows import read_rows, stat_dataset
from multigraft_trainer.intake.samples import TokenisedDataset
from multigraft_trainer.intake.tokenise import Tokeniser
from multigraft_trainer.intake.tokenizer import IntakeTokenizer


def load_dataset(
    path: Path,
    *,
    options: IntakeOptions,
    tokenizer: IntakeTokenizer,
    embedding_rows: int,
    cache_dir: Path | None = None,
) -> TokenisedDataset:
    """Read, check, render, tokenise and mask every row of a file.

    Args:
        path: JSON lines (plain or gzip) or Parquet.
        embedding_rows: Rows of the base model's embedding table; every token id is below it.
        cache_dir: Folder for tokenised datasets, which are used again while content, tokenizer, options and code agree.

    Returns:
        At least one sample, in file order, with the account of all rows.

    Raises:
        RefusalError: `DatasetNotFound`, `InvalidDataset`, `DatasetEmpty`, `InvalidChatTemplate`, `TokenOutOfRange` or
            `BaseModelInvalid` (the format needs an end token that the tokenizer lacks). The message has at most 500
            characters and no text of a row.
    """
    before = stat_dataset(path)
    key = build_key(
        content_sha256=hash_file(path),
        tokenizer_sha256=tokenizer.sha256,
        options=options,
        embedding_rows=embedding_rows,
    )
    cached = load_cached(cache_dir, key) if cache_dir is not None else None
    if cached is not None:
        return cached
    account = Account(shown_name(path))
    tokeniser = Tokeniser(tokenizer, options, embedding_rows, account)
    with Preparation(options, tokenizer, account) as preparation:
        samples = list(tokeniser.tokenise(preparation.prepare(read_rows(path))))
    after = stat_dataset(path)
    if (after.st_ino, after.st_size, after.st_mtime_ns) != (before.st_ino, before.st_size, before.st_mtime_ns):
        raise RefusalError(Reason.INVALID_DATASET, f"dataset {shown_name(path)} was changed while it was read")
    report = account.conclude(options, embedding_rows=embedding_rows)
    samples.sort(key=lambda sample: sample.row)
    dataset = TokenisedDataset.build(samples, report)
    if cache_dir is not None:
        save_cached(cache_dir, key, dataset)
    return dataset
