"""Make the length lists of this folder from real texts: token counts alone, no text is kept.

    python make_lengths.py TOKENIZER_FOLDER --docstrings FOLDER... --chitchat dataset.json --man FOLDER

docstrings   numpy 2.3.5, scipy 1.17.1, scikit-learn 1.9.1, pandas 3.1.1 (BSD-3): unpacked wheels, parsed, not imported
chitchat     chitchat-dataset 0.9.0 (PyPI, MIT): conversations of two or more turns, all their messages
manpages     Debian manpages-dev 6.03-2: the unpacked package, each page once, as its source text

Tokens of SmolLM2's tokenizer; samples of 64 tokens or more, cut at 4,096 as LoRAFusion cuts its datasets. Average
lengths are near those of XSum, CNN/DailyMail and WikiSum, tails are heavier; they are never those datasets.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

SHORTEST, LONGEST = 64, 4096
HERE = Path(__file__).parent / "lengths"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--docstrings", type=Path, nargs="+", required=True)
    parser.add_argument("--chitchat", type=Path, required=True)
    parser.add_argument("--man", type=Path, required=True)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer / "tokenizer.json"))
    save("docstrings", tokenizer, read_docstrings(arguments.docstrings))
    save("chitchat", tokenizer, read_chitchat(arguments.chitchat))
    save("manpages", tokenizer, read_man_pages(arguments.man))


def save(name: str, tokenizer: Tokenizer, texts: Iterator[str]) -> None:
    lengths = [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    kept = [min(length, LONGEST) for length in lengths if length >= SHORTEST]
    (HERE / f"{name}.json").write_text(json.dumps(kept, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{name}: {len(kept)} of {len(lengths)} samples, mean {sum(kept) / len(kept):.0f}")


def read_docstrings(folders: list[Path]) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    seen: set[str] = set()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except (SyntaxError, ValueError):
                continue
            for node in ast.walk(tree):
                text = ast.get_docstring(node) if isinstance(node, kinds) else None
                if text and "\n" in text and text not in seen:
                    seen.add(text)
                    yield text


def read_chitchat(path: Path) -> Iterator[str]:
    for conversation in json.loads(path.read_text(encoding="utf-8")).values():
        turns = conversation["messages"]
        if len(turns) >= 2:
            yield "\n".join(message["text"] for turn in turns for message in turn)


def read_man_pages(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.gz")):
        if "/man/man" in str(path) and not path.is_symlink():
            yield gzip.decompress(path.read_bytes()).decode("utf-8", errors="replace")


if __name__ == "__main__":
    main()
