"""Make the tiny base model and the datasets of this example in `prepared/`; a second call writes the same again."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
PREPARED = HERE / "prepared"
TINY_BASE = Path("helm", "multigraft", "files", "tests", "tiny_base.py")  # what `helm test` trains on too

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
BOOKS = ("atlas", "novel", "dictionary", "cookbook", "biography", "diary", "almanac", "guide")


def load_tiny_base() -> ModuleType:
    """Load the module that makes the base, from the checkout that this folder lies in.

    Raises:
        FileNotFoundError: If there is none.
    """
    for parent in HERE.parents:
        if (parent / TINY_BASE).is_file():
            spec = importlib.util.spec_from_file_location("tiny_base", parent / TINY_BASE)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise FileNotFoundError(f"no {TINY_BASE} above {HERE}: run this inside a checkout of multigraft")


def build_rows() -> dict[str, list[dict[str, str]]]:
    """Build the rows of each dataset."""
    hours = [f"On {day} we open at {9 + index % 3} and close at {17 + index % 4}." for index, day in enumerate(DAYS)]
    return {
        "opening-hours": [{"text": text} for text in hours * 2],
        "titles": [{"prompt": f"The {book} ", "completion": f"of {day}."} for book in BOOKS for day in DAYS[:2]],
        "loans": [
            {"prompt": f"Lend me an {book}. ", "completion": f"Back by {day}, please."}
            for book, day in zip(BOOKS, DAYS * 2, strict=False)
        ],
        "shelves": [{"text": f"The {book} stands on shelf {index}."} for index, book in enumerate(BOOKS)],
    }


def main() -> None:
    """Write everything."""
    base, data = PREPARED / "base", PREPARED / "data"
    for folder in (base, data):
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in load_tiny_base().build_files().items():
        (base / name).write_bytes(content)
    for name, rows in build_rows().items():
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"prepared: {PREPARED}")


if __name__ == "__main__":
    main()
