"""Resolve an adapter's target modules on the clean base, with PEFT's rules; say no to what would be passed over.

An entry is one of
    all-linear           every nn.Linear but the output head
    q_proj, mlp.up_proj  modules whose name is the entry or ends with `.` and the entry
    a regular expression modules whose whole name matches; it must be the only entry
Every entry must match; nothing but plain linear layers may match. Where a model has several parts (text, vision), a
name matches in all of them, as in PEFT: a longer name or an expression narrows it, `count_by_part` shows it.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import regex

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.backends.module_catalogue import ModuleCatalogue

ALL_LINEAR = "all-linear"
_PLAIN_NAME = regex.compile(r"[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]+)*")
_REGEX_SECONDS = 2.0  # all names of a model of 100 layers take milliseconds; the rest is catastrophic backtracking


@dataclass(frozen=True)
class ResolvedTargets:
    """Which linear layers an adapter has."""

    names: tuple[str, ...]  # full module names, in the model's order
    peft_entries: (
        tuple[str, ...] | str
    )  # what a PEFT config says to select the same: names or suffixes, or an expression

    def count_by_part(self) -> dict[str, int]:
        """Count targets per sub-tree: the name up to the first layer number, such as `model.layers`."""
        return dict(Counter(regex.split(r"\.\d+\.", name, maxsplit=1)[0] for name in self.names))


def resolve_targets(entries: Sequence[str], modules: ModuleCatalogue) -> ResolvedTargets:
    """Resolve `lora.targetModules`.

    Raises:
        RefusalError: TargetModulesNotFound if an entry matches no linear layer (named, with the closest candidates),
            NotSupported if one matches the output head, an embedding, an expert or a module that is not linear.
    """
    if not entries:
        raise RefusalError(
            Reason.TARGET_MODULES_NOT_FOUND, f"lora.targetModules is empty; this base has {_list_suffixes(modules)}"
        )
    selected: set[str] = set()
    for entry in entries:
        selected |= _match_entry(entry, modules, alone=len(entries) == 1)
    names = tuple(name for name in modules.linears if name in selected)
    return ResolvedTargets(names, _build_peft_entries(entries, modules))


def _match_entry(entry: str, modules: ModuleCatalogue, *, alone: bool) -> set[str]:
    if entry == ALL_LINEAR:
        return _match_all(modules)
    if _PLAIN_NAME.fullmatch(entry):
        matched = {name for name in _all_names(modules) if name == entry or name.endswith(f".{entry}")}
    elif alone:
        matched = _match_expression(entry, modules)
    else:
        raise RefusalError(
            Reason.NOT_SUPPORTED,
            f"lora.targetModules: {entry!r} is a regular expression; it must be the only entry (use `|` in it)",
        )
    linear = matched & modules.linears.keys()
    _refuse_others(entry, matched - linear, modules)
    if not linear:
        raise RefusalError(
            Reason.TARGET_MODULES_NOT_FOUND,
            f"lora.targetModules: {entry!r} matches 0 modules; {_suggest(entry, modules)}",
        )
    return linear


def _build_peft_entries(entries: Sequence[str], modules: ModuleCatalogue) -> tuple[str, ...] | str:
    """Say it as the job did; `all-linear` as the last name parts of all linear layers, if nothing else bears them."""
    if ALL_LINEAR not in entries:
        return entries[0] if len(entries) == 1 and not _PLAIN_NAME.fullmatch(entries[0]) else tuple(entries)
    leaves = {name.rpartition(".")[2] for name in modules.linears}
    others = {name.rpartition(".")[2] for name in _all_names(modules) if name not in modules.linears}
    return tuple(modules.linears) if leaves & others else tuple(sorted(leaves))


def _match_all(modules: ModuleCatalogue) -> set[str]:
    if not modules.linears:
        raise RefusalError(Reason.NOT_SUPPORTED, f"lora.targetModules: {ALL_LINEAR}: this base has no nn.Linear layer")
    if modules.has_linear_experts:
        raise RefusalError(
            Reason.NOT_SUPPORTED,
            f"lora.targetModules: {ALL_LINEAR} takes in {modules.experts[0]}, part of the experts of a "
            f"mixture-of-experts layer; experts cannot be adapted yet; name the layers: {_list_suffixes(modules)}",
        )
    return set(modules.linears)


def _match_expression(entry: str, modules: ModuleCatalogue) -> set[str]:
    try:
        pattern = regex.compile(entry)
        return {name for name in _all_names(modules) if pattern.fullmatch(name, timeout=_REGEX_SECONDS)}
    except regex.error as error:
        raise RefusalError(
            Reason.TARGET_MODULES_NOT_FOUND, f"lora.targetModules: {entry!r} is no regular expression: {error}"
        ) from error
    except TimeoutError as error:
        raise RefusalError(
            Reason.NOT_SUPPORTED,
            f"lora.targetModules: {entry!r} took over {_REGEX_SECONDS} s on one name; write it without nested repeats",
        ) from error


def _refuse_others(entry: str, names: set[str], modules: ModuleCatalogue) -> None:
    """Refuse what PEFT would treat in another way than a plain linear layer, or fail on."""
    for name in sorted(names):
        if name == modules.head:
            what = "the output head, which is shared by all adapters and stays frozen"
        elif name in modules.embeddings:
            what = "an embedding, which is shared by all adapters and stays frozen"
        elif name in modules.experts:
            what = "part of the experts of a mixture-of-experts layer; experts cannot be adapted yet"
        else:
            what = f"a {modules.others[name]}, not an nn.Linear"
        raise RefusalError(Reason.NOT_SUPPORTED, f"lora.targetModules: {entry!r} matches {name}: {what}")


def _all_names(modules: ModuleCatalogue) -> Iterable[str]:
    yield from modules.linears
    yield from modules.others
    yield from modules.embeddings
    yield from modules.experts
    yield modules.head


def _suggest(entry: str, modules: ModuleCatalogue) -> str:
    suffixes = sorted({name.rsplit(".", 1)[-1] for name in modules.linears})
    close = difflib.get_close_matches(entry.rsplit(".", 1)[-1], suffixes, n=3, cutoff=0.5)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{meant}this base has {_list_suffixes(modules)}"


def _list_suffixes(modules: ModuleCatalogue) -> str:
    return ", ".join(dict.fromkeys(name.rsplit(".", 1)[-1] for name in modules.linears)) or "no linear layer"
