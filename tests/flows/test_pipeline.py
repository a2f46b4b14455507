import json
import sys
from pathlib import Path

import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, LogFilter, LogFilterFlowRunId
from prefect.flow_engine import run_flow
from prefect.states import Failed
from prefect.utilities.callables import parameter_schema

from flows import stages
from flows.pipeline import bert_pipeline, evaluate, finetune, preprocess, pretrain
from flows.stages import StageError
from flows.tasks import TASKS, may_pass_next_time
from keras_bert_flow.config.loading import load_config
from tests.oracles.tiny_model import HIDDEN, write_tiny_model
from tests.patience import wait_until

FLOWS = (preprocess, pretrain, finetune, evaluate, bert_pipeline)
STAGES = ["vocab", "records", "pretrain", "finetune", "report"]


@pytest.fixture
def runs(prefect_server, tiny_config: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to the folder of the tiny configuration, with a stand-in for the commands; return the folder of runs."""
    monkeypatch.chdir(tiny_config.parent)
    monkeypatch.setattr(stages, "COMMAND", (sys.executable, str(Path(__file__).with_name("fake_command.py"))))
    return tiny_config.parent / "runs"


def calls(runs: Path) -> list[str]:
    return [line.split()[0] for line in (runs / "calls.txt").read_text().splitlines()]


def artifacts_of(flow_run_id) -> dict:
    run_filter = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]))
    with get_client(sync_client=True) as client:
        return {artifact.key: artifact for artifact in client.read_artifacts(artifact_filter=run_filter)}


def logs_of(flow_run_id) -> list[str]:
    with get_client(sync_client=True) as client:
        return [log.message for log in client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run_id])))]


def test_second_run_shows_cached_stages_and_the_report_and_makes_again_what_was_deleted(runs: Path):
    state = bert_pipeline("tiny.yaml", return_state=True)
    report = Path(state.result())
    assert report.is_file() and report.is_absolute()
    assert calls(runs) == STAGES
    said = {f"{name} says hello" for name in STAGES}
    wait_until(lambda: said <= set(logs_of(state.state_details.flow_run_id)))  # Prefect sends logs every 2 s
    state = bert_pipeline("tiny.yaml", return_state=True)
    assert state.result() == str(report)
    assert calls(runs) == STAGES
    artifacts = artifacts_of(state.state_details.flow_run_id)
    assert "| ours | 0.9 |" in artifacts["report"].data
    assert str(report) in artifacts["report"].data
    table = json.loads(artifacts["stages"].data)
    assert [row["stage"] for row in table] == ["vocabulary", "records", "pretraining", "finetuning", "evaluation"]
    assert all(row["cached"] and row["seconds"] < 60 for row in table)
    (evaluation,) = (path for path in (runs / "evaluation").iterdir() if path.is_dir())
    evaluation.rename(runs / "gone")
    bert_pipeline("tiny.yaml")  # though Prefect remembers it
    assert calls(runs) == [*STAGES, "report"]


def test_changed_setting_runs_only_what_depends_on_it(runs: Path):
    bert_pipeline("tiny.yaml")
    bert_pipeline("tiny.yaml", overrides=["finetuning.epochs=2"], backend=None)
    assert calls(runs) == [*STAGES, "finetune", "report"]
    bert_pipeline("tiny.yaml", overrides=["finetuning.grid={epochs: [5]}"])
    assert calls(runs) == [*STAGES, *["finetune", "report"] * 2]
    given = options_of((runs / "arguments.txt").read_text().splitlines()[-2].split())
    assert load_config(given["--config"]).finetuning.grid.epochs == (5,)


@pytest.mark.slow
def test_second_phase_goes_on_from_the_first(runs: Path):
    phase = "second_phase={sequence_length: 48, max_predictions: 7, batch_size: 2, total_steps: 3, warmup_steps: 1}"
    bert_pipeline("tiny.yaml", overrides=[phase])
    assert calls(runs) == ["vocab", "records", "records", "pretrain", "pretrain", "finetune", "report"]
    lines = (runs / "arguments.txt").read_text().splitlines()
    first, second = (line.split() for line in lines if line.startswith("pretrain"))
    given, report = options_of(second), options_of(lines[-1].split())
    assert "--initial-model" not in first
    assert Path(given["--initial-model"]).parent == Path(options_of(first)["--output"])
    settings = load_config(given["--config"])
    assert (settings.records.sequence_length, settings.records.duplication) == (48, 2)
    assert (settings.pretraining.total_steps, settings.pretraining.log_every_steps) == (3, 2)
    assert (report["--pretrained"], report["--records"]) == (given["--output"], given["--records"])
    assert report["--earlier"] == options_of(first)["--output"]
    bert_pipeline("tiny.yaml", overrides=[phase])
    assert len(calls(runs)) == 7
    evaluate("tiny.yaml", overrides=[phase])
    bert_pipeline("tiny.yaml")  # its first phase is there
    assert calls(runs)[7:] == ["report"]  # all models of the stand-in are alike, so fine-tuning is there, too
    state = pretrain("tiny.yaml", overrides=[phase], records=given["--records"], return_state=True)
    assert "Each phase of pre-training must have its records. Received: 1 folder for 2 phases." in state.message


@pytest.mark.slow
def test_pretraining_goes_on_from_a_model_with_its_vocabulary(runs: Path):
    model = write_tiny_model(runs.parent / "initial")
    values = yaml.safe_load(Path("tiny.yaml").read_text()) | {"initial_model": "initial", "model": {}}
    Path("tiny.yaml").write_text(yaml.safe_dump(values))
    bert_pipeline("tiny.yaml")
    lines = [line.split() for line in (runs / "arguments.txt").read_text().splitlines()]
    settings = load_config(options_of(lines[0])["--config"])
    assert (settings.vocabulary.file, settings.model.hidden_dim) == (str(model / "vocab.txt"), HIDDEN)
    assert options_of(lines[2])["--initial-model"] == str(model)
    pretrained = options_of(lines[2])["--output"]
    bert_pipeline(
        "tiny.yaml",
        overrides=["second_phase={sequence_length: 48, max_predictions: 7, total_steps: 3, warmup_steps: 1}"],
    )
    lines = [line.split() for line in (runs / "arguments.txt").read_text().splitlines()]
    phases = [options_of(line)["--initial-model"] for line in lines if line[0] == "pretrain"]
    assert phases == [str(model), f"{pretrained}/model"]


def test_label_words_that_the_vocabulary_lacks_are_refused_before_training(runs: Path):
    words = ["pretraining.bag_of_words=1", "finetuning.pooling=bag_of_words", "finetuning.head_start=probe"]
    words.append("finetuning.label_words={'0': [good, bad], '1': [fine]}")
    state = bert_pipeline("tiny.yaml", overrides=words, return_state=True)
    assert "for each class that the vocabulary has whole. Received: fine for '1'" in state.message
    assert calls(runs) == ["vocab", "records"]


STUDENT = "distillation=" + json.dumps(
    {
        "student": {"family": "distilbert", "num_layers": 1, "hidden_dim": 16, "num_heads": 2, "intermediate_dim": 32},
        "total_steps": 5,
        "warmup_steps": 1,
    }
)


@pytest.mark.slow
def test_student_is_distilled_between_pretraining_and_finetuning(runs: Path):
    state = bert_pipeline("tiny.yaml", overrides=[STUDENT], return_state=True)
    table = json.loads(artifacts_of(state.state_details.flow_run_id)["stages"].data)
    assert [row["stage"] for row in table][2:5] == ["pretraining", "distillation", "finetuning"]
    assert calls(runs) == ["vocab", "records", "pretrain", "distill", "finetune", "report"]
    lines = (runs / "arguments.txt").read_text().splitlines()
    teacher, student, tuned, report = (options_of(line.split()) for line in lines[2:])
    assert Path(student["--teacher"]).parent == Path(teacher["--output"])
    assert student["--records"] == teacher["--records"]
    assert Path(tuned["--model"]).parent == Path(student["--output"])
    assert (report["--pretrained"], report["--earlier"]) == (student["--output"], teacher["--output"])
    preprocess("tiny.yaml", overrides=[STUDENT])
    assert pretrain("tiny.yaml", overrides=[STUDENT]) == student["--output"]
    evaluate("tiny.yaml", overrides=[STUDENT])
    assert len(calls(runs)) == 6


@pytest.mark.slow
def test_table_is_augmented_by_the_teacher_before_finetuning(runs: Path):
    augmented = [STUDENT, "augmentation.copies=3", "finetuning.max_train_examples=9"]
    state = bert_pipeline("tiny.yaml", overrides=augmented, return_state=True)
    table = json.loads(artifacts_of(state.state_details.flow_run_id)["stages"].data)
    assert [row["stage"] for row in table][3:6] == ["distillation", "augmentation", "finetuning"]
    assert calls(runs) == ["vocab", "records", "pretrain", "distill", "augment", "finetune", "report"]
    lines = (runs / "arguments.txt").read_text().splitlines()
    teacher, _, made, tuned, report = (options_of(line.split()) for line in lines[2:])
    assert Path(made["--model"]).parent == Path(teacher["--output"])
    before, after, shown = (load_config(options["--config"]) for options in (made, tuned, report))
    assert (before.augmentation.copies, before.finetuning.max_train_examples) == (3, 9)
    assert (after.task.train, after.augmentation) == (f"{made['--output']}/train.jsonl", None)
    assert after.finetuning.max_train_examples is None and after == shown
    finetune("tiny.yaml", overrides=augmented)
    evaluate("tiny.yaml", overrides=augmented)
    bert_pipeline("tiny.yaml", overrides=augmented)
    assert len(calls(runs)) == 7
    model = str(write_tiny_model(runs.parent / "given", has_masked_lm=True))
    finetune("tiny.yaml", model=model, overrides=["augmentation.copies=3"])
    assert calls(runs)[7:] == ["augment", "finetune"]
    lines = [options_of(line.split()) for line in (runs / "arguments.txt").read_text().splitlines()[7:]]
    assert [options["--model"] for options in lines] == [model, model]
    bert_pipeline("tiny.yaml", overrides=["augmentation={copies: 3, model: given}"])
    assert calls(runs)[9:] == ["report"]  # the table is there, and as all fake models are equal, what is fine-tuned


def options_of(words: list[str]) -> dict[str, str]:
    return dict(zip(words[1::2], words[2::2], strict=True))


def test_form_reaches_the_commands(runs: Path):
    assert Path(bert_pipeline("tiny.yaml", backend="torch", steps=5)).is_file()
    assert "pretrain torch, for tiny, torch, 5 steps" in (runs / "calls.txt").read_text()  # as its locks say
    (line,) = (line for line in (runs / "arguments.txt").read_text().splitlines() if line.startswith("pretrain"))
    assert load_config(options_of(line.split())["--config"]).pretraining.total_steps == 5


@pytest.mark.parametrize(("name", "kept"), [("mine", "mine"), (None, "tiny, torch, 5 steps")])
def test_given_name_of_a_run_is_kept(runs: Path, name: str | None, kept: str):
    given = {"config_path": "tiny.yaml", "steps": 5, "backend": "torch", "overrides": ["records.shard=3"]}
    with get_client(sync_client=True) as client:
        made = client.create_flow_run(bert_pipeline, parameters=given, name=name)  # as a deployment does
        run_flow(bert_pipeline, made, given, return_type="state")
        assert client.read_flow_run(made.id).name.removesuffix(", records.shard=3") == kept


@pytest.mark.slow
def test_single_flows_follow_each_other(runs: Path):
    preprocess("tiny.yaml")
    pretrained = pretrain("tiny.yaml")
    finetune("tiny.yaml", model=f"{pretrained}/model")
    evaluate("tiny.yaml")
    assert calls(runs) == STAGES
    bert_pipeline("tiny.yaml")
    assert calls(runs) == STAGES


def test_single_flow_says_what_must_run_first(runs: Path):
    with pytest.raises(FileNotFoundError, match="`vocabulary` must be finished first.*Run the flow `preprocess`"):
        pretrain("tiny.yaml")


def test_user_error_is_the_state_message_and_is_not_tried_again(runs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAKE_REFUSES", "records")
    state = bert_pipeline("tiny.yaml", return_state=True)
    assert state.is_failed()
    assert "`batch_size` must be smaller. Received: 9. Try 8." in state.message
    assert calls(runs) == ["vocab", "records"]


@pytest.mark.parametrize(
    ("error", "again"), [(StageError("killed"), True), (OSError("full"), True), (ValueError(), False)]
)
def test_only_what_may_pass_is_tried_again(error: Exception, again: bool):
    assert may_pass_next_time(TASKS["records"], None, Failed(data=error)) is again


def test_wrong_setting_is_the_state_message(runs: Path):
    state = bert_pipeline("tiny.yaml", overrides=["records.shard=3"], return_state=True)
    assert "`records.shard` is no known setting. Valid names:" in state.message


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_parameter_forms_are_described_and_need_nothing(flow):
    schema = parameter_schema(flow).model_dump()
    assert schema["required"] == []
    assert all(parameter["description"] for parameter in schema["properties"].values())
    assert schema["properties"]["overrides"]["type"] == "array"
    assert schema["definitions"] == {}  # every parameter is a field of its own
