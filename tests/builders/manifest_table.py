"""Good and bad manifests, one table for local validation and for the API server.

Both must accept and refuse the same ones, and both must name the field. Rows of real-world cases begin with their id.
"""

from __future__ import annotations

from dataclasses import dataclass

from builders.manifest_text import job_text, pool_text


@dataclass(frozen=True)
class Row:
    """One manifest; `field` is what a refusal must name, None: it is accepted."""

    id: str
    text: str
    field: str | None = None
    says: str = ""  # part of the local message
    is_local: bool = False  # what CEL cannot say: the API server accepts it, and the trainer refuses it


@dataclass(frozen=True)
class UpdateRow:
    """One change of an object; `fields` are those that may not change, none: it is accepted."""

    id: str
    old: str
    new: str
    fields: tuple[str, ...] = ()


LR = "spec.training.learningRate"
ALPHA = "spec.lora.loraAlpha"
DROPOUT = "spec.lora.loraDropout"
RANK = "spec.lora.r"
REVISION = "spec.baseModel.revision"
TARGETS = "spec.lora.targetModules"
CAPACITY = "spec.batching.maxTokensPerMicrobatch"
LIMITS = "resources: {limits: "


def _lr(written: str) -> str:
    return job_text(training=f"maxSteps: 10\nlearningRate: {written}")


def _lora(text: str) -> str:
    return job_text(lora=text)


def _training(text: str) -> str:
    return job_text(training=text)


def _template(text: str) -> str:
    return pool_text(more=f"template: {{{text}}}")


def _capacity(written: str) -> str:
    return pool_text(more=f"batching: {{maxTokensPerMicrobatch: {written}}}")


NUMBERS = (
    Row("J01 lr1 1e-4 is a number to kubectl", _lr("1e-4"), LR, 'such as "1e-4"'),
    Row("J01 lr2 quoted 1e-4 is right", _lr('"1e-4"')),
    Row("J01 lr3 1.0e-4", _lr("1.0e-4"), LR, 'such as "1.0e-4"'),
    Row("J01 lr4 0.0001", _lr("0.0001"), LR, 'got number 0.0001, want a quoted decimal string > 0 such as "0.0001"'),
    Row("J01 lr5 1E-4", _lr("1E-4"), LR, 'such as "1E-4"'),
    Row("J01 lr6 .0001", _lr(".0001"), LR, 'such as "0.0001"'),
    Row("J01 lr7 1e-4f is text but no decimal", _lr("1e-4f"), LR, 'got text "1e-4f"'),
    Row("J01 quoted .0001 lacks its zero", _lr('".0001"'), LR),
    Row("J01 quoted with a sign", _lr('"+1e-4"'), LR),
    Row("J01 quoted with blanks", _lr('" 1e-4"'), LR),
    Row("J01 quoted with a newline at the end", _lr('"1e-4\\n"'), LR),
    Row("J01 1e400 is text to kubectl, as it overflows", _lr("1e400"), LR),
    Row("J01 zero learning rate", _lr('"0"'), LR, "> 0"),
    Row("J01 zero with an exponent", _lr('"0.0e5"'), LR, "> 0"),
    Row("J01 tiny learning rate is above zero", _lr('"1e-99"')),
    Row("J01 decimal comma", _lr('"0,0001"'), LR),
    Row("J01 hexadecimal is a number", _lr("0x1p-13"), LR),
    Row("J01 underscore", _lr('"1_0"'), LR),
    Row("J03 01 r 0", _lora("r: 0"), RANK, "from 1 to 512"),
    Row("J03 02 r -8", _lora("r: -8"), RANK, "from 1 to 512"),
    Row("J03 03 r 8.5", _lora("r: 8.5"), RANK, "whole number"),
    Row("J03 04 r quoted 8", _lora('r: "8"'), RANK, "write 8 without quotes"),
    Row("J03 05 r 1000000000", _lora("r: 1000000000"), RANK, "from 1 to 512"),
    Row("J03 06 r true", _lora("r: true"), RANK, "got boolean true"),
    Row("J03 07 alpha 0", _lora("loraAlpha: 0"), ALPHA, "> 0"),
    Row("J03 07 alpha quoted 0", _lora('loraAlpha: "0"'), ALPHA, "> 0"),
    Row("J03 08 alpha -1", _lora("loraAlpha: -1"), ALPHA, "> 0"),
    Row("J03 08 alpha quoted -1", _lora('loraAlpha: "-1"'), ALPHA, "> 0"),
    Row("J03 09 alpha .nan", _lora("loraAlpha: .nan"), ALPHA, "got number nan"),
    Row("J03 09 alpha quoted NaN", _lora('loraAlpha: "NaN"'), ALPHA, 'got text "NaN"'),
    Row("J03 10 dropout -0.1", _lora("loraDropout: -0.1"), DROPOUT, ">= 0 and < 1"),
    Row("J03 10 dropout quoted -0.1", _lora('loraDropout: "-0.1"'), DROPOUT, ">= 0 and < 1"),
    Row("J03 11 dropout 1.0", _lora("loraDropout: 1.0"), DROPOUT, ">= 0 and < 1"),
    Row("J03 11 dropout quoted 1.0", _lora('loraDropout: "1.0"'), DROPOUT, ">= 0 and < 1"),
    Row("J03 12 dropout 1.5", _lora("loraDropout: 1.5"), DROPOUT, ">= 0 and < 1"),
    Row("J03 12 dropout quoted 1.5", _lora('loraDropout: "1.5"'), DROPOUT, ">= 0 and < 1"),
    Row("J03 13 dropout .inf", _lora("loraDropout: .inf"), DROPOUT, "got number inf"),
    Row("J03 r 1 is the least", _lora("r: 1")),
    Row("J03 r 512 is the most", _lora("r: 512")),
    Row("J03 r 513", _lora("r: 513"), RANK),
    Row("J03 r written 8.0 is whole", _lora("r: 8.0")),
    Row("J03 r written 1e1 is whole", _lora("r: 1e1")),
    Row("J03 r written 0o17 is 15", _lora("r: 0o17")),
    Row("J03 dropout just below 1", _lora('loraDropout: "0.999999999999"')),
    Row("J03 beta2 of 1", _training('maxSteps: 1\nadamBeta2: "1"'), "spec.training.adamBeta2", "< 1"),
    Row("J03 epsilon of 0", _training('maxSteps: 1\nadamEpsilon: "0"'), "spec.training.adamEpsilon", "> 0"),
    Row("J03 weight decay above 1", _training('maxSteps: 1\nweightDecay: "1.01"'), "spec.training.weightDecay", "<= 1"),
    Row("J03 clipping off", _training('maxSteps: 1\nmaxGradNorm: "0"')),
    Row("J03 seed of 64 bits", _training("maxSteps: 1\nseed: 9223372036854775807")),
    Row("J03 seed over 64 bits", _training("maxSteps: 1\nseed: 9223372036854775808"), "spec.training.seed"),
    Row("J03 seed far over 64 bits", _training("maxSteps: 1\nseed: 99999999999999999999999"), "spec.training.seed"),
    Row("J04 deadline 0", job_text(more="activeDeadlineSeconds: 0"), "spec.activeDeadlineSeconds"),
    Row("J04 deadline -1", job_text(more="activeDeadlineSeconds: -1"), "spec.activeDeadlineSeconds"),
    Row("J04 deadline 1h", job_text(more="activeDeadlineSeconds: 1h"), "spec.activeDeadlineSeconds"),
    Row("J04 deadline 1e3 is whole", job_text(more="activeDeadlineSeconds: 1e3")),
    Row("J04 ttl 0", job_text(more="ttlSecondsAfterFinished: 0")),
    Row("J07 cpu 1000m and memory 1024Mi", _template(LIMITS + "{cpu: 1000m, memory: 1024Mi}}")),
    Row("J07 cpu 2", _template(LIMITS + "{cpu: 2}}")),
    Row("J07 cpu 0.75 unquoted", _template(LIMITS + "{cpu: 0.75}}"), "spec.template.resources.limits.cpu"),
    Row("J07 memory 4GB", _template(LIMITS + "{memory: 4GB}}"), "spec.template.resources.limits.memory"),
    Row("J07 negative cpu", _template(LIMITS + "{cpu: -1}}"), "spec.template.resources.limits.cpu"),
)

NULLS = (
    Row("J02 null-0 null is the default", _lora("loraAlpha: null\nloraDropout: null")),
    Row("J02 null-1 ~ is the default", _lora("loraAlpha: ~\nloraDropout: ~")),
    Row("J02 null-2 None is text", _lora("loraAlpha: None"), ALPHA, "for the default leave the field out"),
    Row("J02 null-3 empty text", _lora('loraAlpha: ""'), ALPHA, "for the default leave the field out"),
    Row("J02 nothing after the colon", _lora("loraAlpha:")),
    Row("J02 null for a whole section", job_text(lora="", more="lora: null\noutput: ~\nresumeFrom: null")),
    Row("J02 null for a required section", job_text(dataset="", more="dataset: null"), "spec.dataset", "missing"),
    Row("J02 null in a list", _lora("targetModules: [q_proj, null]"), "spec.lora.targetModules[1]"),
    Row("J02 null for one of two sources", job_text(dataset="storageUri: null\nconfigMapRef: {name: a, key: b}")),
    Row("J02 null for both sources", job_text(dataset="storageUri: null"), "spec.dataset", "storageUri, configMapRef"),
)

TEXT_AND_NAMES = (
    Row("J09 rev-0 revision 5176135", pool_text(base="revision: 5176135"), REVISION, 'quote it: "5176135"'),
    Row("J09 rev-1 revision 0123", pool_text(base="revision: 0123"), REVISION, 'quote it: "0123"'),
    Row("J09 rev-2 revision 1e10", pool_text(base="revision: 1e10"), REVISION, 'quote it: "1e10"'),
    Row("J09 rev-3 revision quoted 0123", pool_text(base='revision: "0123"')),
    Row("J09 revision on", pool_text(base="revision: on"), REVISION, 'quote it: "on"'),
    Row("J09 revision n", pool_text(base="revision: n"), REVISION, 'quote it: "n"'),
    Row("J09 revision like a date", pool_text(base="revision: 2026-01-31")),
    Row("J09 label value 1", job_text(namespace="team-a\n  labels: {tier: 1}"), "metadata", 'quote it: "1"'),
    Row("H01 name of 63", job_text(name="a" * 63)),
    Row("H01 name of 64", job_text(name="b" * 64)),
    Row("H01 name of 200", job_text(name="f" * 200)),
    Row("H01 name of 253 with dots", job_text(name=".".join(["c" * 62] * 4) + ".d")),
    Row("H01 name of 254", job_text(name="a" * 254), "metadata.name"),
    Row("H01 namespace of 64", job_text(namespace="a" * 64), "metadata.namespace"),
    Row("B13 name with dots and dashes", job_text(name="team-a.support-v1.2")),
    Row("B13 name with a slash", job_text(name="team-a/support"), "metadata.name"),
    Row("B13 name with upper case", job_text(name="Support"), "metadata.name"),
    Row("B13 name that ends in a dot", job_text(name="support."), "metadata.name"),
    Row("B13 name with an underscore", job_text(name="my_job"), "metadata.name"),
    Row("pool reference that is no name", job_text(pool="poolRef: {name: Tiny_Pool}"), "spec.poolRef.name"),
    Row("label key with a blank", job_text(namespace='team-a\n  labels: {"a b": c}'), "metadata.labels"),
    Row("label key without text after the slash", job_text(namespace="team-a\n  labels: {a/: c}"), "metadata.labels"),
    Row("annotation key with upper case", job_text(namespace="team-a\n  annotations: {Example.com/A: c}")),
    Row("storage URI of 1025 characters", job_text(dataset=f"storageUri: {'x' * 1025}"), "spec.dataset.storageUri"),
    Row(
        "storage URI with blanks and letters of any script",
        job_text(dataset='storageUri: "s3://b/daten für x/1.jsonl"'),
    ),
    Row(
        "storage URI with a newline", job_text(dataset='storageUri: "a\\nb"'), "spec.dataset.storageUri", "control char"
    ),
    Row("storage URI with a blank at its end", job_text(dataset='storageUri: "a "'), "spec.dataset.storageUri"),
    Row("storage URI with a NUL", job_text(dataset='storageUri: "a\\0"'), "spec.dataset.storageUri"),
    Row("storage URI that is empty", job_text(dataset='storageUri: ""'), "spec.dataset.storageUri"),
    Row(
        "storage URI with dots that do not climb", job_text(dataset='storageUri: "s3://b/..a/b../c..d/.../%2e/x.jsonl"')
    ),
    *(
        Row(f"K01 {what}", job_text(dataset=f"storageUri: '{uri}'"), "spec.dataset.storageUri", "without `..`")
        for what, uri in (
            ("storage URI that climbs", "../rows.jsonl"),
            ("storage URI that climbs in the middle", "s3://b/a/../../c"),
            ("storage URI that ends in dots", "a/.."),
            ("storage URI that is two dots", ".."),
            ("storage URI with encoded dots", "a/%2e%2E/b"),
            ("storage URI with half encoded dots", "a/.%2e/b"),
            ("storage URI with encoded slashes", "a%2f..%2Fb"),
            ("storage URI with backslashes", r"a\..\b"),
            ("storage URI with one backslash", r"a\b"),
            ("storage URI with an encoded backslash", "a%5c..%5cb"),
        )
    ),
    Row(
        "K01 held-out rows that climb",
        job_text(dataset="storageUri: a\nevalStorageUri: a/../../b"),
        "spec.dataset.evalStorageUri",
    ),
    Row("K01 output that climbs", job_text(more="output: {storageUri: ../out}"), "spec.output.storageUri"),
    Row("K01 start adapter that climbs", job_text(more="resumeFrom: {storageUri: ../a}"), "spec.resumeFrom.storageUri"),
    Row(
        "K01 base model that climbs",
        pool_text().replace("storageUri: base", "storageUri: ../base"),
        "spec.baseModel.storageUri",
    ),
    Row(
        "K01 checkpoints that climb",
        pool_text(more="checkpoint: {storageUri: a/%2e./b}"),
        "spec.checkpoint.storageUri",
    ),
    Row(
        "K01 allowed root that climbs",
        pool_text(more="storage: {allowedRoots: [/data, /data/../etc]}"),
        "spec.storage.allowedRoots",
    ),
)

UNKNOWN = (
    Row("B08 useDora is not there", _lora("useDora: true"), "spec.lora.useDora", "DoRA is not supported"),
    Row("B08 useRslora is", _lora("useRslora: true")),
    Row("B08 snake case", _lora("use_rslora: true"), "spec.lora.use_rslora", "did you mean useRslora?"),
    Row("B09 rankPattern", _lora("rankPattern: {q_proj: 4}"), "spec.lora.rankPattern", "not supported"),
    Row("K05 trustRemoteCode", pool_text(base="trustRemoteCode: true"), "spec.baseModel.trustRemoteCode", "never run"),
    Row("K05 false is no field either", pool_text(base="trustRemoteCode: false"), "spec.baseModel.trustRemoteCode"),
    Row(
        "K07 pool of another namespace",
        job_text(pool="poolRef: {name: tiny-pool, namespace: other-team}"),
        "spec.poolRef.namespace",
        "stay in the namespace",
    ),
    Row(
        "K07 secret of another namespace",
        job_text(dataset="storageUri: a\nsecretRef: {name: hf-token, namespace: other-team}"),
        "spec.dataset.secretRef.namespace",
        "stay in the namespace",
    ),
    Row(
        "K07 config map of another namespace",
        job_text(dataset="configMapRef: {name: a, key: b, namespace: other-team}"),
        "spec.dataset.configMapRef.namespace",
        "stay in the namespace",
    ),
    Row(
        "field in the wrong section", job_text(more='learningRate: "1"'), "spec.learningRate", "spec.training.learningR"
    ),
    Row("field of another trainer", _lora("rank: 8"), "spec.lora.rank", "did you mean r?"),
    Row("misspelled field", _training("maxSteps: 1\nlearningrate: x"), "spec.training.learningrate", "learningRate?"),
    Row("unknown field with null", _lora("madeUp: null"), "spec.lora.madeUp"),
    Row("unknown field at the top", job_text() + "extra: 1\n", "extra"),
    Row("unknown field of the metadata", job_text(namespace="team-a\n  label: {}"), "metadata.label", "labels?"),
    Row(
        "host path volume", _template("volumes: [{name: a, hostPath: {path: /}}]"), "spec.template.volumes[0].hostPath"
    ),
)

RULES = (
    Row("B01 modulesToSave", _lora("modulesToSave: [lm_head]"), "spec.lora.modulesToSave", "must be empty"),
    Row("B01 empty modulesToSave", _lora("modulesToSave: []")),
    Row("B05 rank 320", _lora("r: 320")),
    Row("B05 rank 1024", _lora("r: 1024"), RANK, "from 1 to 512"),
    Row("B15 empty list of targets", _lora("targetModules: []"), "spec.lora.targetModules", "1 to 64 items"),
    Row("B15 empty name", _lora('targetModules: [""]'), "spec.lora.targetModules[0]"),
    Row("B15 name with a blank", _lora('targetModules: ["q proj"]'), "spec.lora.targetModules[0]"),
    Row("B15 name written twice", _lora("targetModules: [q_proj, q_proj]"), "spec.lora.targetModules", "equal"),
    Row("B15 text in place of a list", _lora("targetModules: q_proj"), "spec.lora.targetModules", "want a list"),
    Row(
        "all-linear with another", _lora("targetModules: [all-linear, q_proj]"), "spec.lora.targetModules", "only entry"
    ),
    Row("a regular expression", _lora(r"targetModules: ['model\.layers\.[0-3]\..*_proj']")),
    Row("an expression that looks ahead", _lora("targetModules: ['(?!.*visual).*(q|v)_proj']")),
    Row("an expression with brackets in brackets", _lora(r"targetModules: ['.*[[\]()*+?].*\(\[\\']")),
    *(
        Row(f"B15 {what}", _lora(f"targetModules: ['{entry}']"), TARGETS, "regular expression", is_local=is_local)
        for what, entry, is_local in (
            ("expression that is a file pattern", "*_proj", False),
            ("expression that ends in a backslash", "q_proj\\", False),
            ("expression with an open class", "layers.[0-3", False),
            ("expression with an open group", "(q|v_proj", False),
            ("expression with a lone bracket", "q|v)_proj", False),
            ("expression with an inner open group", "(q|v)_(proj", True),
            ("expression repeated twice", "layers.**", True),
            ("expression with a range upside down", "[z-a]_proj", True),
            ("expression with an unknown group", "(?Z)q_proj", True),
            ("expression with more repeats than there are", "q{99999999999}", True),
        )
    ),
    Row("B15 expression beside a name", _lora("targetModules: ['.*q_proj', v_proj]"), TARGETS, "only entry"),
    Row("two names with dots and dashes", _lora("targetModules: [mlp.up_proj, a-b.c_d.0]")),
    Row("slots with names and expressions", pool_text(more="slots: {targetModules: ['.*q_proj', v_proj, '(k|o)']}")),
    Row(
        "slots with an expression that does not compile",
        pool_text(more="slots: {targetModules: [v_proj, '(k']}"),
        "spec.slots.targetModules",
    ),
    Row(
        "C11 warm-up longer than the run",
        _training("maxSteps: 12\nwarmupSteps: 2000"),
        "spec.training.warmupSteps",
        "2000",
    ),
    Row("C11 warm-up as long as the run", _training("maxSteps: 12\nwarmupSteps: 12")),
    Row("C11 warm-up of an epoch count", _training("numTrainEpochs: 1\nwarmupSteps: 2000")),
    Row("steps and epochs", _training("maxSteps: 1\nnumTrainEpochs: 1"), "spec.training", "maxSteps, numTrainEpochs"),
    Row("neither steps nor epochs", _training("globalBatchSize: 1"), "spec.training", "maxSteps, numTrainEpochs"),
    Row("two sources", job_text(dataset="storageUri: a\nconfigMapRef: {name: a, key: b}"), "spec.dataset"),
    Row("no source", job_text(dataset="format: Text"), "spec.dataset", "storageUri, configMapRef"),
    Row("pool and selector", job_text(more="poolSelector: {}"), "spec", "poolRef, poolSelector"),
    Row("neither pool nor selector", job_text(pool="suspend: true"), "spec", "poolRef, poolSelector"),
    Row("selector", job_text(pool="poolSelector: {matchLabels: {tier: gold}}")),
    Row(
        "selector with expressions",
        job_text(
            pool="poolSelector: {matchExpressions: [{key: a, operator: In, values: [b]}, {key: c, operator: Exists}]}"
        ),
    ),
    Row(
        "selector In without values",
        job_text(pool="poolSelector: {matchExpressions: [{key: a, operator: In}]}"),
        "spec.poolSelector.matchExpressions[0].values",
    ),
    Row(
        "selector Exists with values",
        job_text(pool="poolSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}"),
        "spec.poolSelector.matchExpressions[0].values",
    ),
    Row("selector key", job_text(pool='poolSelector: {matchLabels: {"a b": c}}'), "spec.poolSelector.matchLabels"),
    Row(
        "enum in lower case",
        _training("maxSteps: 1\nlrSchedulerType: cosine"),
        "spec.training.lrSchedulerType",
        "write Cosine",
    ),
    Row(
        "enum in snake case",
        _training("maxSteps: 1\nlrSchedulerType: constant_with_warmup"),
        "spec.training.lrSchedulerType",
        "write ConstantWithWarmup",
    ),
    Row("PEFT's bias none", _lora("bias: none"), "spec.lora.bias", "write None"),
    Row("G01 skip long samples", job_text(dataset="storageUri: a\nlongSamplePolicy: Skip")),
    Row("whole section of the wrong type", job_text(lora="", more="lora: [r]"), "spec.lora", "got a list"),
    Row(
        "secretRef as text is not shown",
        job_text(dataset="storageUri: a\nsecretRef: hf_abc"),
        "spec.dataset.secretRef",
        "got text,",
    ),
    Row("boolean as text", job_text(more='suspend: "true"'), "spec.suspend", "write true without quotes"),
    Row("boolean as yes", job_text(more="suspend: yes")),
)

POOLS = (
    Row("smallest pool", pool_text()),
    Row(
        "pool without base",
        "apiVersion: multigraft.dev/v1alpha1\nkind: BaseModelPool\nmetadata: {name: a}\nspec: {}\n",
        "spec.baseModel",
    ),
    Row("pool on CPU", pool_text(base="dtype: FP32", more="gpu: {accelerators: [{name: CPU}]}")),
    Row(
        "same device twice", pool_text(more="gpu: {accelerators: [{name: CPU}, {name: CPU}]}"), "spec.gpu.accelerators"
    ),
    Row("no device", pool_text(more="gpu: {accelerators: []}"), "spec.gpu.accelerators"),
    Row(
        "unknown device",
        pool_text(more="gpu: {accelerators: [{name: h100}]}"),
        "spec.gpu.accelerators[0].name",
        "write H100",
    ),
    Row("tensor parallel", pool_text(more="parallelism: {tensor: 2}"), "spec.parallelism.tensor"),
    Row("backend that is not there", pool_text(more="backend: Megatron"), "spec.backend", "only Transformers"),
    Row("quantization that is not there", pool_text(base="quantization: FP8Shared"), "spec.baseModel.quantization"),
    Row("capacity Auto", _capacity("Auto")),
    Row("capacity quoted Auto", _capacity('"Auto"')),
    Row("capacity 16 is the least", _capacity("16")),
    Row("capacity written 4096.0 is whole", _capacity("4096.0")),
    Row("capacity 1048576 is the most", _capacity("1048576")),
    Row("capacity null is the default", _capacity("null")),
    Row("capacity auto in lower case", _capacity("auto"), CAPACITY, "write Auto"),
    Row("capacity AUTO in upper case", _capacity("AUTO"), CAPACITY, "write Auto"),
    Row("capacity automatic", _capacity("automatic"), CAPACITY, "from 16 to 1048576 or Auto"),
    Row("capacity Auto with a newline", _capacity('"Auto\\n"'), CAPACITY, "or Auto"),
    Row("capacity quoted 4096", _capacity('"4096"'), CAPACITY, "write 4096 without quotes"),
    Row("capacity empty", _capacity('""'), CAPACITY, "for the default leave the field out"),
    Row("capacity 15", _capacity("15"), CAPACITY, "from 16 to 1048576 or Auto"),
    Row("capacity 0", _capacity("0"), CAPACITY, "from 16 to 1048576 or Auto"),
    Row("capacity -1", _capacity("-1"), CAPACITY, "from 16 to 1048576 or Auto"),
    Row("capacity 1048577", _capacity("1048577"), CAPACITY, "from 16 to 1048576 or Auto"),
    Row("capacity 4096.5", _capacity("4096.5"), CAPACITY, "got number 4096.5"),
    Row("capacity true", _capacity("true"), CAPACITY, "got boolean true"),
    Row("capacity .inf", _capacity(".inf"), CAPACITY, "from 16 to 1048576 or Auto"),
    Row("capacity 2^70", _capacity("1180591620717411303424"), CAPACITY, "from 16 to 1048576 or Auto"),
    Row("capacity as a list", _capacity("[4096]"), CAPACITY, "got a list"),
    Row("capacity as an object", _capacity("{tokens: 4096}"), CAPACITY, "got an object"),
    Row("replicas 65", pool_text(more="replicas: 65"), "spec.replicas"),
    Row("replicas 0", pool_text(more="replicas: 0")),
    Row("target modules of the slots", pool_text(more="slots: {targetModules: [q_proj, v_proj]}")),
    Row(
        "all-linear and another",
        pool_text(more="slots: {targetModules: [all-linear, q_proj]}"),
        "spec.slots.targetModules",
    ),
    Row(
        "whole template",
        _template(
            "metadata: {labels: {a: b}, annotations: {a: b c}}, nodeSelector: {a: b},"
            " tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}], priorityClassName: high,"
            " imagePullSecrets: [{name: a}], serviceAccountName: a, resources: {requests: {cpu: 1, memory: 4Gi}},"
            " env: [{name: A, value: b}, {name: B, valueFrom: {secretKeyRef: {name: a, key: b}}}],"
            " volumes: [{name: m, persistentVolumeClaim: {claimName: c}}, {name: t, emptyDir: {}}],"
            " volumeMounts: [{name: m, mountPath: /models, readOnly: true}]"
        ),
    ),
    Row("toleration without key", _template("tolerations: [{value: a}]"), "spec.template.tolerations[0].operator"),
    Row(
        "toleration with a needless value",
        _template("tolerations: [{key: a, operator: Exists, value: b}]"),
        "spec.template.tolerations[0].value",
    ),
    Row("variable without value", _template("env: [{name: A}]"), "spec.template.env[0]", "value, valueFrom"),
    Row("variable twice", _template("env: [{name: A, value: a}, {name: A, value: b}]"), "spec.template.env"),
    Row(
        "volume with two sources",
        _template("volumes: [{name: a, emptyDir: {}, secret: {secretName: a}}]"),
        "spec.template.volumes[0]",
    ),
    Row(
        "relative mount",
        _template("volumeMounts: [{name: a, mountPath: models}]"),
        "spec.template.volumeMounts[0].mountPath",
    ),
)

OBJECTS = (
    Row("wrong version", job_text().replace("v1alpha1", "v1"), "apiVersion", "want multigraft.dev/v1alpha1"),
    Row("kind in lower case", job_text().replace("AdapterJob", "adapterjob"), "kind", "did you mean AdapterJob?"),
    Row("spec is missing", job_text().partition("spec:")[0], "spec", "missing"),
    Row("name is missing", job_text().replace("  name: support\n", ""), "metadata.name", "missing"),
    Row("status of an exported object", job_text() + "status: {phase: Running}\n"),
    Row(
        "metadata of an exported object",
        job_text(namespace="team-a\n  uid: a\n  generation: 1\n  creationTimestamp: null"),
    ),
)

ROWS = (*NUMBERS, *NULLS, *TEXT_AND_NAMES, *UNKNOWN, *RULES, *POOLS, *OBJECTS)

_BEFORE = job_text(
    name="edit-me",
    lora='r: 8\nloraAlpha: "16"\ntargetModules: [q_proj, v_proj]',
    training='numTrainEpochs: 1\nlearningRate: "1e-4"\nseed: 0',
)


def _changed(*changes: tuple[str, str], more: str = "") -> str:
    text = _BEFORE
    for old, new in changes:
        if old not in text:
            raise ValueError(f"{old!r} is not in the manifest")
        text = text.replace(old, new)
    return text + more


UPDATES = (
    UpdateRow(
        "H15 rank, targets, dataset, epochs, learning rate and seed edited",
        _BEFORE,
        _changed(
            ("r: 8", "r: 16"),
            ("[q_proj, v_proj]", "[q_proj]"),
            ("support.jsonl", "other.jsonl"),
            ("numTrainEpochs: 1", "numTrainEpochs: 2"),
            ('"1e-4"', '"1e-3"'),
            ("seed: 0", "seed: 1"),
        ),
        (
            "spec.lora.r",
            "spec.lora.targetModules",
            "spec.dataset.storageUri",
            "spec.training.numTrainEpochs",
            "spec.training.learningRate",
            "spec.training.seed",
        ),
    ),
    UpdateRow("H15 nothing changed", _BEFORE, _BEFORE),
    UpdateRow(
        "H15 pause, priority, deadline, retries and ttl may change",
        _BEFORE,
        _changed(
            more="  suspend: true\n  priority: 5\n  activeDeadlineSeconds: 60\n  backoffLimit: 1\n"
            "  ttlSecondsAfterFinished: 9\n"
        ),
    ),
    UpdateRow("H15 order of targets does not matter", _BEFORE, _changed(("q_proj, v_proj", "v_proj, q_proj"))),
    UpdateRow(
        "H15 an empty list of modulesToSave spelled out is no change",
        _BEFORE,
        _changed(("r: 8", "r: 8\n    modulesToSave: []")),
    ),
    UpdateRow("H15 a default spelled out is no change", _BEFORE, _changed(("r: 8", 'r: 8\n    loraDropout: "0"'))),
    UpdateRow(
        "H15 default left out, then another value",
        _BEFORE,
        _changed(("r: 8", 'r: 8\n    loraDropout: "0.1"')),
        ("spec.lora.loraDropout",),
    ),
    UpdateRow(
        "H15 epochs changed to steps",
        _BEFORE,
        _changed(("numTrainEpochs: 1", "maxSteps: 5")),
        ("spec.training.maxSteps", "spec.training.numTrainEpochs"),
    ),
    UpdateRow("H15 another pool", _BEFORE, _changed(("tiny-pool", "big-pool")), ("spec.poolRef",)),
    UpdateRow("H15 output added", _BEFORE, _changed(more="  output: {storageUri: a}\n"), ("spec.output",)),
    UpdateRow(
        "H15 start adapter added", _BEFORE, _changed(more="  resumeFrom: {storageUri: a}\n"), ("spec.resumeFrom",)
    ),
    UpdateRow(
        "H15 start adapter removed", _changed(more="  resumeFrom: {storageUri: a}\n"), _BEFORE, ("spec.resumeFrom",)
    ),
    UpdateRow("pool scaled and resized", pool_text(), pool_text(more="replicas: 3\nslots: {max: 2}")),
    UpdateRow(
        "base model changed", pool_text(), pool_text().replace("base\n", "other\n"), ("spec.baseModel.storageUri",)
    ),
    UpdateRow("revision added", pool_text(), pool_text(base="revision: main"), ("spec.baseModel.revision",)),
    UpdateRow("dtype changed", pool_text(), pool_text(base="dtype: FP32"), ("spec.baseModel.dtype",)),
    UpdateRow("token rotated", pool_text(), pool_text(base="secretRef: {name: new}")),
)
