"""What fails when code or results are not the golden ones, and what may be recorded."""

from dataclasses import replace

import pytest

from keras_bert_flow.results.stages import STAGES
from tests.golden import recording
from tests.golden.recording import ALL_STAGES, BACKENDS, Golden, StageRecord, decide, list_changed, list_differences
from tests.golden.results import DATA, TRAINING

CODE = {"pretraining": {"a": "1", "b": "1"}, "records": {"a": "1"}}
RESULTS = {
    "pretraining": StageRecord(1, {"jax": {"bert": {"losses": [2.0, 1.0]}}}),
    "records": StageRecord(1, {"any": {"mlm": {"file": "0a"}}}),
}
VERSIONS = {"jax": {"jax": "1"}}
GOLDEN = Golden({"a": "1", "b": "1"}, RESULTS, VERSIONS)
SAME = {"pretraining": {"jax": {"bert": {"losses": [2.0, 1.000001]}}}}
OTHER = {"pretraining": {"jax": {"bert": {"losses": [2.0, 1.01]}}}}
CHANGED = {**CODE, "pretraining": {"a": "1", "b": "2"}}


@pytest.fixture
def revised(monkeypatch):
    """Raise the revision of pre-training."""
    stage = replace(STAGES["pretraining"], revision=2)
    monkeypatch.setitem(ALL_STAGES, "pretraining", stage)


def test_code_of_each_stage_is_as_recorded():
    changed = list_changed(recording.read_golden(), recording.find_closures())
    assert not changed, f"{recording.describe_changed(changed)}\n{recording.HELP}"


def test_numbers_are_of_the_versions_that_are_tested():
    golden = recording.read_golden()
    assert golden.versions == {backend: recording.find_versions(backend) for backend in BACKENDS}, (
        f"Golden results must be of the installed versions. {recording.HELP}"
    )


def test_every_stage_has_results_in_every_place():
    golden = recording.read_golden()
    assert golden.stages.keys() == ALL_STAGES.keys() == {*DATA, *TRAINING}
    for stage, record in golden.stages.items():
        assert record.results.keys() == {*recording.places_of(stage)} and all(record.results.values())


def test_a_change_of_code_names_the_module_and_its_stages_alone():
    assert list_changed(GOLDEN, CODE) == {}
    assert list_changed(GOLDEN, CHANGED) == {"pretraining": ["b"]}
    assert list_changed(replace(GOLDEN, modules={}), CODE) == {"pretraining": ["a", "b"], "records": ["a"]}
    text = recording.describe_changed(list_changed(GOLDEN, CHANGED))
    assert text == "Changed since recorded, of pretraining: b."


def test_changed_code_with_equal_results_is_recorded_and_keeps_the_numbers():
    after, refusals = decide(GOLDEN, CHANGED, SAME, VERSIONS)
    assert not refusals and after.modules == {"a": "1", "b": "2"} and after.stages == RESULTS


def test_changed_results_are_refused_until_the_revision_is_raised(revised, monkeypatch):
    after, refusals = decide(GOLDEN, CHANGED, OTHER, VERSIONS)
    assert not refusals
    assert after.stages["pretraining"] == StageRecord(2, OTHER["pretraining"])
    monkeypatch.setitem(ALL_STAGES, "pretraining", STAGES["pretraining"])
    _, (refusal,) = decide(GOLDEN, CHANGED, OTHER, VERSIONS)
    assert "bert, losses[1]: 1.0, now 1.01" in refusal
    assert "Raise `revision` in keras_bert_flow/results/stages/models.py and note it in CHANGELOG.md" in refusal
    _, (refusal,) = decide(after, CHANGED, OTHER, VERSIONS)
    assert "must not fall. Received: 1, after 2" in refusal


def test_a_raised_revision_alone_is_a_change(revised):
    assert list_changed(GOLDEN, CODE) == {"pretraining": ["its revision"]}


def test_other_versions_of_libraries_may_change_numbers_only_where_the_code_is_the_same():
    later = {"jax": {"jax": "2"}}
    after, refusals = decide(GOLDEN, CODE, OTHER, later)
    assert not refusals and after.versions == later
    assert after.stages["pretraining"].results == OTHER["pretraining"]
    assert decide(GOLDEN, CHANGED, OTHER, later)[1]


def test_a_new_case_is_recorded_and_a_lost_one_refused():
    more = {"pretraining": {"jax": {**SAME["pretraining"]["jax"], "albert": {"losses": [3.0]}}}}
    after, refusals = decide(GOLDEN, CHANGED, more, VERSIONS)
    assert not refusals and after.stages["pretraining"].results["jax"]["albert"] == {"losses": [3.0]}
    assert decide(after, CHANGED, SAME, VERSIONS)[1]


def test_differences_are_told_by_their_place_and_rounding_is_none():
    recorded = {"a": [1.0, 0.0], "b": {"c": 1, "d": "x"}}
    assert not [*list_differences(recorded, {"a": [1.00001, 1e-6], "b": {"c": 1, "d": "x"}})]
    found = {"a": [1.0, 0.1], "b": {"c": 2}}
    assert [*list_differences(recorded, found)] == ["a[1]: 0.0, now 0.1", "b, c: 1, now 2", "b, d: x, now None"]
    assert [*list_differences([1.0], [1.0, 2.0])] and [*list_differences(1.0, float("nan"))]


def test_golden_files_are_read_as_written_and_a_merge_may_spoil_the_modules(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "MODULES", tmp_path / "modules.json")
    monkeypatch.setattr(recording, "RESULTS", tmp_path / "stages.json")
    assert recording.read_golden() == Golden({}, {}, {})
    recording.write_golden(GOLDEN)
    assert recording.read_golden() == GOLDEN
    (tmp_path / "modules.json").write_text("<<<<<<< HEAD\n")
    assert recording.read_golden() == replace(GOLDEN, modules={})
    (tmp_path / "stages.json").write_text("<<<<<<< HEAD\n")
    with pytest.raises(ValueError, match="git checkout --ours"):
        recording.read_golden()
