import json
from pathlib import Path

import pytest

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.evaluation.tables import runs_text, tabulate_runs
from keras_bert_flow.results.manifest import write_manifest
from tests.commands import assert_refused, kbf
from tests.evaluation.test_results import results_of


def publish(folder: Path, answers, pretraining=None, **settings) -> Path:
    folder.mkdir(parents=True)
    results = results_of(answers) | {"pretraining": pretraining or {}}
    (folder / "metrics.json").write_text(json.dumps(results))
    write_manifest(folder, "evaluation", folder.name, PipelineConfig(**settings).model_dump(mode="json"), {}, {})
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Path]:
    figures = {"masked_lm_loss": 2.5, "parameters": 12345, "seconds": 1234.5}
    right, wrong = [[0, 1, 2, 2], [0, 1, 2, 1]], [[0, 0, 0, 0]]
    return {
        "first": publish(tmp_path / "evaluation" / "0a1b", right, figures, seed=1, runs="here", name="A"),
        "second": publish(tmp_path / "evaluation" / "0c2d", wrong, seed=2, runs="there", name="B", backend="torch"),
    }


def test_table_has_the_scores_and_the_settings_that_differ(runs):
    header, first, second = tabulate_runs(runs)
    assert header[:3] == ["run", "backend", "seed"]
    assert header[-3:] == ["masked-LM loss", "parameters", "pre-training, s"]
    (score,) = [place for place, name in enumerate(header) if name.startswith("pre-trained, ")]
    assert first[:3] == ["first", "jax", "1"] and second[:3] == ["second", "torch", "2"]
    assert (first[score], second[score]) == ("87.5 ± 17.7", "25.0")
    assert first[header.index("runs") :] == ["2", "2.500", "12,345", "1,234"]
    assert second[header.index("runs") :] == ["1", "", "", ""]
    assert "87.5 ± 17.7" in runs_text(runs)


def test_command_compares_folders_and_keys(runs, tmp_path):
    status, said, error = kbf("report", runs["first"], "0c2d", "--runs", tmp_path)
    assert status == 0, error
    assert "A 0a1b" in said and "B 0c2d" in said and "87.5 ± 17.7" in said


def test_what_is_no_report_is_refused(runs, tmp_path):
    assert_refused(kbf("report", runs["first"], "--records", "x"), "--records beside them")
    write_manifest(tmp_path, "records", "key", {}, {}, {})
    with pytest.raises(ValueError, match="must hold evaluation"):
        tabulate_runs({"it": tmp_path})
    (runs["first"] / "metrics.json").write_text("{}")
    with pytest.raises(ValueError, match="changed or damaged"):
        tabulate_runs(runs)
