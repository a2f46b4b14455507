"""Compare code and results with the golden ones, and decide which of them may be recorded.

`modules.json` has the digest of each module that a stage's result depends on, and `stages.json` for each stage its
revision and its results: those of `results.DATA` once, those of `results.TRAINING` for each backend. A change of code
must leave the results as they are, or raise the revision of the stage.
"""

import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from keras_bert_flow.results.stages import STAGES, data, models, tasks
from keras_bert_flow.results.stages.data import IMPORTED
from keras_bert_flow.results.stages.keys import Stage
from tests.golden.import_closure import code_digests
from tests.golden.results import DATA, TRAINING, Results

HERE = Path(__file__).parent
MODULES, RESULTS = HERE / "modules.json", HERE / "stages.json"
ANYWHERE = "any"  # the place of results that are the same on each backend
BACKENDS = ("jax", "tensorflow", "torch")
LIBRARIES = ("keras", "numpy", "scikit-learn")  # besides that of the backend, of whose roundings numbers are
RTOL, ATOL = 2e-5, 2e-6
MAX_SHOWN = 6
ALL_STAGES: dict[str, Stage] = {**STAGES, "imported records": IMPORTED}
HELP = (
    "Run `python -m tests.golden --record`: where the results are the same, it records the digests of the code. Where "
    "they differ, raise `revision` of the stage in keras_bert_flow/results/stages/, note it in CHANGELOG.md, and run "
    "it again."
)


@dataclass(frozen=True)
class StageRecord:
    """Revision of a stage, and place → case → its results, where a place is a backend or `ANYWHERE`."""

    revision: int
    results: Mapping[str, Results] = field(default_factory=dict)


@dataclass(frozen=True)
class Golden:
    """What is recorded.

    Attributes:
        modules: module → digest.
        stages: stage → its record.
        versions: backend → library → the version that the numbers were computed with.
    """

    modules: Mapping[str, str]
    stages: Mapping[str, StageRecord]
    versions: Mapping[str, Mapping[str, str]]


def read_golden() -> Golden:
    """Read the golden files. A list of modules that cannot be read, as after a merge, counts as empty.

    Raises:
        ValueError: the results cannot be read.
    """
    try:
        modules = json.loads(MODULES.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        modules = {}
    try:
        values = json.loads(RESULTS.read_text(encoding="utf-8"))
        stages = {name: StageRecord(**record) for name, record in values["stages"].items()}
    except FileNotFoundError:
        return Golden(modules, {}, {})
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"Golden results must be whole. Received: {RESULTS}, damaged or in the middle of a merge. Take those of "
            "one side, `git checkout --ours` or `--theirs`, and run it again."
        ) from None
    return Golden(modules, stages, values["versions"])


def write_golden(golden: Golden) -> None:
    """Write the golden files, a line for each module and each case."""
    stages = {name: asdict(record) for name, record in golden.stages.items()}
    MODULES.write_text(_format(golden.modules, 1) + "\n", encoding="utf-8")
    RESULTS.write_text(_format({"stages": stages, "versions": golden.versions}, 5) + "\n", encoding="utf-8")


def find_closures() -> dict[str, dict[str, str]]:
    """Return stage → module of its import closure → digest."""
    return {name: code_digests(stage.made_by) for name, stage in ALL_STAGES.items()}


def find_versions(backend: str) -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in (*LIBRARIES, backend)}


def list_changed(golden: Golden, closures: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """Return stage → what of it is not as recorded: modules of its closure, or its revision."""
    found = {}
    for stage, closure in closures.items():
        changed = [name for name, digest in closure.items() if golden.modules.get(name) != digest]
        record = golden.stages.get(stage)
        if record is None or record.revision != ALL_STAGES[stage].revision:
            changed.append("its revision")
        if changed:
            found[stage] = changed
    return found


def describe_changed(changed: Mapping[str, list[str]]) -> str:
    """Describe the result of `list_changed` for people."""
    modules = sorted({name for names in changed.values() for name in names})
    more = f" and {len(modules) - MAX_SHOWN} more" if len(modules) > MAX_SHOWN else ""
    return f"Changed since recorded, of {', '.join(changed)}: {', '.join(modules[:MAX_SHOWN])}{more}."


def list_differences(recorded: Any, found: Any, place: str = "") -> Iterator[str]:
    """Yield where results differ by more than rounding.

    Numbers may differ by `RTOL` and `ATOL`, twenty times what they differ by on one machine with SSE4.2 in place of
    AVX2, without oneDNN in TensorFlow, and with all of XLA's optimizations in place of none: at most 1e-6. A GELU by
    tanh in place of erf changes weights and losses by 2e-4.
    """
    if isinstance(recorded, dict) and isinstance(found, dict):
        for name in sorted(recorded.keys() | found.keys()):
            yield from list_differences(recorded.get(name), found.get(name), f"{place}, {name}" if place else name)
    elif isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        for number, pair in enumerate(zip(recorded, found, strict=True)):
            yield from list_differences(*pair, f"{place}[{number}]")
    elif isinstance(recorded, float) and isinstance(found, float):
        if not abs(recorded - found) <= ATOL + RTOL * max(abs(recorded), abs(found)):
            yield f"{place}: {recorded}, now {found}"
    elif recorded != found:
        yield f"{place}: {recorded}, now {found}"


def list_new_differences(recorded: Results, found: Results) -> list[str]:
    """Return the differences of a stage's results; cases that are not recorded yet are none."""
    return list(list_differences(recorded, {name: case for name, case in found.items() if name in recorded}))


def decide(
    golden: Golden,
    closures: Mapping[str, Mapping[str, str]],
    found: Mapping[str, Mapping[str, Results]],
    versions: Mapping[str, Mapping[str, str]],
) -> tuple[Golden, list[str]]:
    """Return what to record, and why it must not be recorded: empty if it may.

    Args:
        found: stage → place → its results now, of all that changed.
        versions: backend → library → version, of the results found.
    """
    changed, refusals, stages = list_changed(golden, closures), [], {}
    for stage in closures:
        now = ALL_STAGES[stage].revision
        record = golden.stages.get(stage) or StageRecord(now)
        if now < record.revision:
            refusals.append(f"{stage}: its revision must not fall. Received: {now}, after {record.revision}.")
        results = dict(record.results)
        for place, cases in found.get(stage, {}).items():
            before = results.get(place, {})
            differences = list_new_differences(before, cases)
            is_of_others = stage not in changed and golden.versions.get(place) != versions.get(place)
            if differences and now == record.revision and not is_of_others:
                shown = "".join(f"\n  {line}" for line in differences[:MAX_SHOWN])
                refusals.append(
                    f"{stage}: equal settings and inputs give another result on {place}, {len(differences)} "
                    f"differences, and its revision is still {now}.{shown}\n  Raise `revision` in {_find_file(stage)} "
                    "and note it in CHANGELOG.md, or make the change so that results stay."
                )
            results[place] = cases if differences else cases | {name: before[name] for name in before}
        stages[stage] = replace(record, revision=now, results=results)
    modules = {name: digest for closure in closures.values() for name, digest in closure.items()}
    return Golden(modules, stages, {**golden.versions, **versions}), refusals


def places_of(stage: str) -> tuple[str, ...]:
    return BACKENDS if stage in TRAINING else (ANYWHERE,)


def stages_of(place: str) -> tuple[str, ...]:
    return DATA if place == ANYWHERE else TRAINING


def _find_file(stage: str) -> str:
    wanted = ALL_STAGES[stage].name
    module = next(one for one in (data, models, tasks) if getattr(one, wanted.upper(), None))
    return module.__name__.replace(".", "/") + ".py"


def _format(value: Any, levels: int, indent: int = 0) -> str:
    """Format JSON with a line for each entry of the outer levels."""
    if levels == 0 or not isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    margin = " " * (indent + 1)
    lines = [f"{margin}{json.dumps(name)}: {_format(value[name], levels - 1, indent + 1)}" for name in sorted(value)]
    return "{\n" + ",\n".join(lines) + f"\n{' ' * indent}}}"
