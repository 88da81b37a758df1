"""Four small datasets from texts that lie on every machine once Python, torch and numpy are installed.

Deterministic: the same versions give the same rows in the same order. Nothing is downloaded and nothing is imported
but the standard library; the other packages' sources are parsed, not run.

| dataset           | format           | a row                                                        |
| ----------------- | ---------------- | ------------------------------------------------------------ |
| stdlib-summaries  | PromptCompletion | body of a docstring -> its first line                        |
| api-helper        | Conversational   | what a torch or numpy function does, then which arguments it takes |
| error-codes       | Conversational   | an error's name -> one line in a fixed form, with a system prompt |
| unicode-names     | Text             | a character, its code point, name and kind                   |
"""

from __future__ import annotations

import ast
import builtins
import errno
import functools
import hashlib
import http
import importlib.util
import inspect
import json
import os
import re
import signal
import sysconfig
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NUM_TRAIN_ROWS = 300
NUM_HELDOUT_ROWS = 24

Row = dict[str, Any]


def build_stdlib_summaries() -> Iterator[tuple[str, Row]]:
    """Give (answer, row): the docstring's body asks, its first line answers."""
    for _, node in _documented(*_stdlib()):
        summary, _, body = _docstring(node).partition("\n\n")
        body = _one_paragraph(body)
        if _is_one_line(summary) and 60 <= len(body) <= 360:
            yield summary, {"prompt": f"Description: {body}\nSummary:", "completion": f" {summary}"}


def build_api_helper() -> Iterator[tuple[str, Row]]:
    """Give (answer, row): two questions and two answers about a function of torch or numpy."""
    for module, node in [
        *_documented(*_package("torch", _TORCH_GLOBS)),
        *_documented(*_package("numpy", _NUMPY_GLOBS)),
    ]:
        summary = _first_sentence(_docstring(node))
        arguments = _argument_names(node)
        if not _is_one_line(summary) or not 1 <= len(arguments) <= 6:
            continue
        listed = ", ".join(f"`{name}`" for name in arguments)
        yield (
            summary,
            {
                "messages": [
                    {"role": "user", "content": f"What does `{module}.{node.name}` do?"},
                    {"role": "assistant", "content": summary},
                    {"role": "user", "content": "Which arguments does it take?"},
                    {"role": "assistant", "content": f"{len(arguments)}: {listed}."},
                ]
            },
        )


def build_error_codes() -> Iterator[tuple[str, Row]]:
    """Give (answer, row): errors of HTTP, of the operating system, signals and Python exceptions, each in one line."""
    for name, kind, meaning in _errors():
        answer = f"[{kind}] {name}: {meaning.rstrip('.')}."
        yield (
            answer,
            {
                "messages": [
                    {"role": "system", "content": "Explain the error in one line."},
                    {"role": "user", "content": name},
                    {"role": "assistant", "content": answer},
                ]
            },
        )


def build_unicode_names() -> Iterator[tuple[str, Row]]:
    """Give (answer, row): one sentence about a character, every token of it trained."""
    for code_point in range(0xA1, 0x2C00):
        character = chr(code_point)
        name, kind = unicodedata.name(character, ""), _CATEGORY_NAMES.get(unicodedata.category(character))
        if name and kind:
            yield name, {"text": f"U+{code_point:04X} is {name.lower()}, {kind}: {character}"}


DATASETS: dict[str, Callable[[], Iterator[tuple[str, Row]]]] = {
    "stdlib-summaries": build_stdlib_summaries,
    "api-helper": build_api_helper,
    "error-codes": build_error_codes,
    "unicode-names": build_unicode_names,
}


def write_datasets(folder: Path) -> None:
    """Write `<name>.jsonl` and `<name>.heldout.jsonl` for each dataset.

    Raises:
        ValueError: If the installed texts give too few rows, for example from a Python without its source files.
    """
    for name, build in DATASETS.items():
        rows = pick_rows(build(), NUM_TRAIN_ROWS + NUM_HELDOUT_ROWS)
        if len(rows) < NUM_TRAIN_ROWS + NUM_HELDOUT_ROWS:
            raise ValueError(f"dataset {name}: {len(rows)} rows found, want {NUM_TRAIN_ROWS + NUM_HELDOUT_ROWS}")
        _write_rows(folder / f"{name}.heldout.jsonl", rows[:NUM_HELDOUT_ROWS])
        _write_rows(folder / f"{name}.jsonl", rows[NUM_HELDOUT_ROWS:])


def pick_rows(candidates: Iterator[tuple[str, Row]], num_rows: int) -> list[Row]:
    """Choose rows in the order of their hashes; an answer occurs once, so that no held-out answer was trained."""
    by_answer: dict[str, Row] = {}
    for answer, row in candidates:
        by_answer.setdefault(answer, row)
    ordered = sorted(by_answer, key=lambda answer: hashlib.sha256(answer.encode()).digest())
    return [by_answer[answer] for answer in ordered[:num_rows]]


_TORCH_GLOBS = ("functional.py", "nn/functional.py", "nn/init.py", "nn/modules/*.py", "nn/utils/*.py", "optim/*.py",
                "distributions/*.py", "linalg/*.py", "utils/data/*.py")  # fmt: skip
_NUMPY_GLOBS = ("lib/*.py", "linalg/*.py", "ma/*.py", "fft/*.py")
_STDLIB_GLOBS = ("*.py", "asyncio/*.py", "concurrent/*.py", "email/*.py", "http/*.py", "importlib/*.py", "json/*.py",
                 "logging/*.py", "multiprocessing/*.py", "unittest/*.py", "urllib/*.py", "zipfile/*.py")  # fmt: skip

_CATEGORY_NAMES = {
    "Lu": "an uppercase letter",
    "Ll": "a lowercase letter",
    "Lo": "a letter without case",
    "Nl": "a letter number",
    "No": "a number",
    "Po": "a punctuation mark",
    "Sc": "a currency sign",
    "Sm": "a mathematical sign",
    "So": "a symbol",
}

_Documented = ast.FunctionDef | ast.ClassDef


def _errors() -> Iterator[tuple[str, str, str]]:
    for status in http.HTTPStatus:
        yield f"HTTP {status.value}", "HTTP", status.description or status.phrase
    for number, name in sorted(errno.errorcode.items()):
        yield name, "OS", os.strerror(number)
    for number in sorted(signal.valid_signals()):
        if isinstance(number, signal.Signals) and (meaning := signal.strsignal(number)):
            yield number.name, "signal", meaning
    for name, value in sorted(vars(builtins).items()):
        if isinstance(value, type) and issubclass(value, BaseException) and value.__doc__:
            yield name, "Python", _first_sentence(value.__doc__)
    for _, node in _documented(*_stdlib()):
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Error", "Exception", "Warning")):
            summary = _first_sentence(_docstring(node))
            if _is_one_line(summary):
                yield node.name, "Python", summary


def _stdlib() -> tuple[Path, tuple[str, ...]]:
    return Path(sysconfig.get_paths()["stdlib"]), _STDLIB_GLOBS


def _package(name: str, globs: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    spec = importlib.util.find_spec(name)  # finds the folder; imports nothing
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"package {name}: not installed, want its source files")
    return Path(next(iter(spec.submodule_search_locations))), globs


@functools.cache
def _documented(root: Path, globs: tuple[str, ...]) -> list[tuple[str, _Documented]]:
    """Give (public name of the module, public function or class with a docstring), in file order."""
    found = []
    for path in sorted(path for pattern in globs for path in root.glob(pattern)):
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # other people's escape sequences
            tree = ast.parse(path.read_bytes())
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        module = ".".join(part for part in parts if not part.startswith("_"))
        found += [
            (module, node)
            for node in _definitions(tree)
            if isinstance(node, _Documented) and not node.name.startswith("_") and ast.get_docstring(node)
        ]
    return found


def _definitions(parent: ast.Module | ast.ClassDef) -> Iterator[ast.stmt]:
    """Give functions, classes and their methods; bodies of functions are not searched."""
    for node in parent.body:
        yield node
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node)


def _docstring(node: _Documented) -> str:
    return inspect.cleandoc(ast.get_docstring(node) or "")


def _argument_names(node: _Documented) -> list[str]:
    if isinstance(node, ast.ClassDef):
        inits = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
        return _argument_names(inits[0]) if inits else []
    names = [argument.arg for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]]
    return [name for name in names if name not in ("self", "cls")]


def _first_sentence(text: str) -> str:
    paragraph = _one_paragraph(text.partition("\n\n")[0])
    return re.split(r"(?<=[a-z\])`])\. ", paragraph, maxsplit=1)[0].rstrip(".") + "."


def _one_paragraph(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _is_one_line(text: str) -> bool:
    """Accept a plain English line of moderate length: no markup, no signature, no control character."""
    return 20 <= len(text) <= 110 and text.isprintable() and not re.search(r"::|:math:|->|>>>|^\w+\(", text)


def _write_rows(path: Path, rows: list[Row]) -> None:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
