"""Adopt the results of earlier versions of this package: give them the keys that this version looks for.

Manifests without a revision are of versions whose keys covered the code. What the key of such a result would be now
follows from its manifest, from files beside it, and for text from the configuration in a report or a given one. Inputs
are named in keys by content, so the key of a result does not depend on whether those that it was made from are adopted.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.files.outputs import MANIFEST
from keras_bert_flow.results.artifacts import canonical_json, publishing
from keras_bert_flow.results.lineage import TOKENIZER, TOKENIZER_FILES, Result, find_results, list_sources, walk_sources
from keras_bert_flow.results.manifest import Manifest, check_folder, is_published, read_manifest, store_manifest
from keras_bert_flow.results.publishing import hold_input, holding_inputs
from keras_bert_flow.results.stages import STAGES
from keras_bert_flow.results.stages.data import (
    IMPORTED,
    RECORDS,
    VOCABULARY,
    describe_vocabulary,
    records_key_of,
    records_settings,
    vocabulary_settings,
)
from keras_bert_flow.results.stages.models import (
    ABSENT_WHEN_OFF,
    DISTILLATION,
    PRETRAINING,
    distillation_settings,
    pretraining_settings,
)
from keras_bert_flow.results.stages.tasks import (
    EVALUATION,
    FINETUNING,
    UNSEEN_WHEN_OFF,
    evaluation_settings,
    finetuning_settings,
)

RUNS = "pretrained/seed-*/run.json"
EARLIER = "earlier"  # in the manifest of a run: other settings of its first steps
_OF_TEXT = (VOCABULARY.name, RECORDS.name)
_NO_CONFIG = (
    "its manifest lacks the settings of the corpus, and no report here is of it: give the configuration, --config FILE"
)


@dataclass(frozen=True)
class Adoption:
    """A result of an earlier version, and what may become of it.

    Attributes:
        key: the key that this version looks for; empty if it cannot be adopted.
        reason: why it cannot be adopted, or need not.
        added: settings that the earlier version did not have, which have their defaults in the key.
    """

    result: Result
    key: str
    reason: str = ""
    added: tuple[str, ...] = ()

    @property
    def place(self) -> Path:
        """The folder that it is adopted in: one with the name of its key, or its own if that is named otherwise."""
        folder = self.result.folder
        is_named = folder.name == self.result.key and folder.parent.name == self.result.stage
        return folder.with_name(self.key) if is_named else folder


class Unadoptable(ValueError):
    """The key that a result would have now does not follow from what is known of it."""


def list_adoptions(
    results: Sequence[Result], config: PipelineConfig | None = None, stage: str | None = None
) -> list[Adoption]:
    """Return the whole results of earlier versions, in the order of `results`, with the keys that they would have now.

    Args:
        results: all results of a store.
        config: settings that vocabularies and records may have been made with, where no report says it.
        stage: look at results of this stage only.
    """
    whole = [result for result in results if result.state == "whole" and stage in (None, result.stage)]
    old = [
        result
        for result in whole
        if result.manifest is not None and result.manifest.revision is None and result.manifest.stage in STAGES
    ]
    reported = _find_reported(results) if any(result.stage in _OF_TEXT for result in old) else {}
    return [
        _examine(result, results, [*reported.get(result.folder, []), *([config] if config else [])]) for result in old
    ]


def find_earlier(folder: Path, config: PipelineConfig | None = None) -> Path | None:
    """Return the folder of a result by an earlier version that would have the key after which a folder is named.

    Args:
        folder: `<store>/<stage>/<key>`, which does not exist.
        config: as for `list_adoptions`.
    """
    others = [other for other in folder.parent.glob("[!.]*") if (other / MANIFEST).is_file()]
    if all(_read_revision(other) is not None for other in others):
        return None
    stage, key = folder.parent.name, folder.name
    found = list_adoptions(find_results(folder.parent.parent), config, stage)
    return next((one.result.folder for one in found if one.key == key), None)


def adopt(adoption: Adoption) -> Path:
    """Publish a result under the key that it would have now, and return its folder.

    Where the folder is named by its key, another appears beside it at once, of the same files: they are linked, or on
    disks without hard links copied, so the paths of the earlier one stay valid. Otherwise its manifest is replaced.

    Raises:
        FileExistsError: the new folder holds something else.
        OSError, ValueError: the result is damaged, or the place cannot be written.
    """
    folder, place = adoption.result.folder, adoption.place
    with holding_inputs():
        hold_input(folder)
        manifest = check_folder(folder)
        adopted = replace(manifest, key=adoption.key, revision=STAGES[manifest.stage].revision)
        if place == folder:
            store_manifest(folder, adopted)
        elif not is_published(place, adoption.key):
            with publishing(place) as work:
                _link_files(folder, work)
                store_manifest(work, adopted)
                made = (folder / MANIFEST).stat()  # its age is that of the result
                os.utime(work / MANIFEST, ns=(made.st_atime_ns, made.st_mtime_ns))
    return place


def _link_files(folder: Path, work: Path) -> None:
    for source in folder.rglob("*"):
        target = work / source.relative_to(folder)
        if source.is_dir():
            target.mkdir(exist_ok=True)
        elif target != work / MANIFEST:
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, target)
            except OSError:
                shutil.copy2(source, target)


def _read_revision(folder: Path) -> int | None:
    """Return the revision in the manifest of a folder; None if there is none."""
    try:
        return read_manifest(folder).revision
    except (OSError, ValueError):
        return None


def _examine(result: Result, results: Sequence[Result], configs: Sequence[PipelineConfig]) -> Adoption:
    manifest = result.manifest
    if manifest is None:
        return Adoption(result, "", "it has no manifest")
    for other in results:
        adopted = other.manifest
        if adopted is None or adopted.revision is None:
            continue
        if manifest == replace(adopted, key=manifest.key, revision=None, digest=manifest.digest):
            return Adoption(result, "", f"adopted as {other.key}")  # the same but for what adopting changes
    try:
        key, added = _find_key(result, manifest, results, configs)
    except ValidationError as error:
        found = error.errors()[0]
        return Adoption(
            result, "", f"its settings are not valid now: {'.'.join(map(str, found['loc']))}: {found['msg']}"
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Adoption(
            result, "", str(error) if isinstance(error, Unadoptable) else f"its settings cannot be read: {error}"
        )
    adoption = Adoption(result, key, added=added)
    is_there = adoption.place != result.folder and _read_revision(adoption.place) is not None
    return Adoption(result, "", f"made again as {key}") if is_there else adoption


def _find_key(
    result: Result, manifest: Manifest, results: Sequence[Result], configs: Sequence[PipelineConfig]
) -> tuple[str, tuple[str, ...]]:
    """Return the key of a result now, and which of its settings are new.

    Raises:
        Unadoptable, ValidationError: it has none; or one of the errors of reading JSON.
    """
    values, inputs = manifest.config, manifest.inputs
    if result.stage == RECORDS.name and not any(name.startswith("corpus-") for name in inputs):
        return IMPORTED.make_key(values, inputs), ()
    if result.stage == VOCABULARY.name:
        if values.get("file") is not None:
            raise Unadoptable("it is copied again in a moment")
        made = [one for one in configs if canonical_json(describe_vocabulary(one.vocabulary)) == canonical_json(values)]
        settings = [vocabulary_settings(one.corpus, one.vocabulary) for one in made]
        return _choose(VOCABULARY.make_key(one, inputs) for one in settings), ()
    if result.stage == RECORDS.name:
        return _choose(_records_keys(result, manifest, results, configs)), ()
    if result.stage == PRETRAINING.name:
        config, added = _read_config(values, ("model", "pretraining"))
        return PRETRAINING.make_key(pretraining_settings(config, values.get(EARLIER, ())), inputs), added
    if result.stage == DISTILLATION.name:
        config, added = _read_config(values, ("model", "pretraining", "distillation"))
        return DISTILLATION.make_key(distillation_settings(config, values.get(EARLIER, ())), inputs), added
    if result.stage == FINETUNING.name:
        config, added = _read_config(values, ("task", "finetuning"))
        return FINETUNING.make_key(finetuning_settings(config), {**inputs, **_read_tables(result)}), added
    if result.stage == EVALUATION.name:
        return _evaluation_key(result, manifest, results)
    raise Unadoptable("it is made again in seconds")


def _read_config(values: Mapping[str, Any], sections: Sequence[str]) -> tuple[PipelineConfig, tuple[str, ...]]:
    """Return a configuration with the sections of a manifest, and the names of the settings that these lack.

    Sections are validated one by one: others, at their defaults, need not go with them.
    """
    read: dict[str, Any] = {name: values[name] for name in ("seed", "backend") if name in values}
    added: list[str] = []
    for name in sections:
        read[name] = TypeAdapter(PipelineConfig.__annotations__[name]).validate_python(values[name])
        added += [
            f"{name}.{field}"
            for field in type(read[name]).model_fields
            if field not in values[name] and field not in (*ABSENT_WHEN_OFF, *UNSEEN_WHEN_OFF)
        ]
    return PipelineConfig().model_copy(update=read), tuple(added)


def _choose(keys: Iterable[str]) -> str:
    found = sorted({*keys})
    if len(found) > 1:
        raise Unadoptable("reports of it have different settings of the corpus")
    if not found:
        raise Unadoptable(_NO_CONFIG)
    return found[0]


def _records_keys(
    result: Result, manifest: Manifest, results: Sequence[Result], configs: Sequence[PipelineConfig]
) -> Iterator[str]:
    sources = {source.name: source for source in list_sources(result, results)}
    holders = sources[TOKENIZER].results if TOKENIZER in sources else ()
    place = next((held.folder for held in holders if held.stage == VOCABULARY.name), result.folder)
    file = next((place / name for name in TOKENIZER_FILES if (place / name).is_file()), None)
    if file is None:
        raise Unadoptable("its vocabulary is missing")
    text = {name: digest for name, digest in manifest.inputs.items() if name != TOKENIZER}
    for config in configs:
        cased = config.vocabulary.cased
        for phase in config.phases:
            facts = records_settings(phase.records) | {"seed": config.seed}
            facts |= {"cased": cased} if file.suffix == ".txt" else {}  # another tokenizer says so itself
            if canonical_json(facts) == canonical_json({name: manifest.config.get(name) for name in facts}):
                yield records_key_of(text, config.corpus, phase.records, file, cased, config.seed)


def _evaluation_key(result: Result, manifest: Manifest, results: Sequence[Result]) -> tuple[str, tuple[str, ...]]:
    config = PipelineConfig(**manifest.config)
    if config.task.extra_dev or config.evaluation.minimal_pairs:
        raise Unadoptable(
            "its manifest lacks the digests of further dev files and minimal pairs; it is made again soon"
        )
    sources = {source.name: source for source in list_sources(result, results)}
    finetuned = next(iter(sources["finetuned"].results), None)
    if finetuned is None or finetuned.manifest is None:
        raise Unadoptable("the models that it is of are not here; it is made again soon")
    task = finetuned.manifest.config["task"]
    if (task["train"], task["dev"]) != (config.task.train, config.task.dev):
        raise Unadoptable("its manifest lacks the digests of its tables, which are not those of its models")
    added = [name for name in PipelineConfig.model_fields if name not in manifest.config]
    return EVALUATION.make_key(evaluation_settings(config), {**manifest.inputs, **_read_tables(finetuned)}), (*added,)


def _read_tables(finetuned: Result) -> dict[str, str]:
    """Return the digests of the tables of a fine-tuning, which its runs hold."""
    for file in sorted(finetuned.folder.glob(RUNS)):
        tables = read_json_object(file).get("identity", {}).get("tables")
        if isinstance(tables, dict):
            return tables
    raise Unadoptable("its runs lack the digests of the tables")


def _find_reported(results: Sequence[Result]) -> dict[Path, list[PipelineConfig]]:
    """Return, by the folder of a result, the configurations of the reports that are of it."""
    found: dict[Path, list[PipelineConfig]] = {}
    for result in results:
        if result.stage != EVALUATION.name or result.state != "whole" or result.manifest is None:
            continue
        try:
            config = PipelineConfig(**result.manifest.config)
        except (ValueError, TypeError):
            continue
        for made, _ in walk_sources(result, results):
            found.setdefault(made.folder, []).append(config)
    return found
