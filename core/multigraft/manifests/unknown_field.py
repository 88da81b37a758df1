"""Find what was meant by a field that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from multigraft.api.rules import JsonObject
from multigraft.manifests.document import Path, format_path
from multigraft.manifests.schema_path import schema_at

_OTHER_NAMES = {
    "alpha": "loraAlpha",
    "batchsize": "globalBatchSize",
    "dropout": "loraDropout",
    "epochs": "numTrainEpochs",
    "lr": "learningRate",
    "maxlength": "maxSeqLength",
    "model": "baseModel",
    "optimizer": "optim",
    "path": "storageUri",
    "pool": "poolRef",
    "rank": "r",
    "scheduler": "lrSchedulerType",
    "steps": "maxSteps",
    "uri": "storageUri",
    "url": "storageUri",
    "warmup": "warmupSteps",
}
"""Names by which other trainers know a field, in lower case."""

_NOT_OFFERED = {
    "alphapattern": "per-module alpha is not supported; use one loraAlpha",
    "dataloadernumworkers": "rows are read before training; there is nothing to set",
    "evalsteps": "the held-out loss is taken before and after training",
    "generatename": "give a name; kubectl apply wants one too",
    "gradientaccumulationsteps": "the planner cuts microbatches; give globalBatchSize",
    "initloraweights": "weights begin as PEFT's default has them, from training.seed",
    "layerstotransform": "name the layers in targetModules, as full names or a regular expression",
    "loggingsteps": "progress is reported at every step",
    "namespace": "references stay in the namespace of their object",
    "packing": "samples are always packed, and never see one another",
    "perdevicetrainbatchsize": "the planner cuts microbatches; give globalBatchSize",
    "rankpattern": "per-module ranks are not supported; use one r",
    "savesteps": "checkpoints are the pool's: spec.checkpoint.intervalSteps of the BaseModelPool",
    "trustremotecode": "code from a model folder is never run",
    "usedora": "DoRA is not supported",
    "warmupratio": "give warmupSteps",
}
"""Fields of PEFT, Hugging Face and others that do not exist here, and why."""


def explain_unknown_field(path: Path, root: JsonObject) -> str:
    """Say that the field at `path` is unknown, and what may have been meant."""
    name = str(path[-1])
    siblings = sorted(schema_at(root, path[:-1]).get("properties", {}))
    plain = _plain(name)
    if plain in _NOT_OFFERED:
        return f"unknown field: {_NOT_OFFERED[plain]}"
    wanted = _OTHER_NAMES.get(plain, name)
    for known in siblings:
        if _plain(known) == _plain(wanted):
            return f"unknown field, did you mean {known}?"
    for elsewhere in _find_everywhere(root, ()):
        if _plain(str(elsewhere[-1])) == _plain(wanted):
            return f"unknown field, did you mean {format_path(elsewhere)}?"
    if close := difflib.get_close_matches(name, siblings, n=1, cutoff=0.7):
        return f"unknown field, did you mean {close[0]}?"
    return f"unknown field, known are {', '.join(siblings)}"


def _plain(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "")


def _find_everywhere(schema: JsonObject, path: Path) -> Iterator[Path]:
    """Yield the path of every field outside lists and the metadata, nearest to the top first."""
    for name, inner in schema.get("properties", {}).items():
        if (*path, name) == ("metadata",):
            continue
        yield (*path, name)
        yield from _find_everywhere(inner, (*path, name))
