"""Manifests as text, so that a test decides how each value is spelled."""

from __future__ import annotations

from textwrap import dedent, indent


def job_text(
    *,
    name: str = "support",
    namespace: str = "team-a",
    pool: str = "poolRef: {name: tiny-pool}",
    dataset: str = "storageUri: support.jsonl",
    lora: str = "r: 8",
    training: str = "maxSteps: 10",
    more: str = "",
) -> str:
    """Write an AdapterJob; each argument is the YAML of one section, `more` that of further fields of `spec`."""
    sections = [
        "apiVersion: multigraft.dev/v1alpha1",
        "kind: AdapterJob",
        f"metadata:\n  name: {name}\n  namespace: {namespace}",
        "spec:",
        _block(pool, 2),
    ]
    for key, text in (("dataset", dataset), ("lora", lora), ("training", training)):
        sections += [f"  {key}:", _block(text, 4)] if text else []
    sections += [_block(more, 2)] if more else []
    return "\n".join(sections) + "\n"


def pool_text(*, name: str = "tiny-pool", namespace: str = "team-a", base: str = "", more: str = "") -> str:
    """Write a BaseModelPool; `base` adds to `baseModel`, `more` to `spec`."""
    sections = [
        "apiVersion: multigraft.dev/v1alpha1",
        "kind: BaseModelPool",
        f"metadata:\n  name: {name}\n  namespace: {namespace}",
        "spec:",
        "  baseModel:",
        "    storageUri: base",
    ]
    sections += [_block(base, 4)] if base else []
    sections += [_block(more, 2)] if more else []
    return "\n".join(sections) + "\n"


def _block(text: str, spaces: int) -> str:
    return indent(dedent(text).strip("\n"), " " * spaces)
