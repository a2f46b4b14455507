"""Paths at other places are refused in one line, before any work, by every command and every function that writes."""

from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import typer

from keras_bert_flow.cli import app
from keras_bert_flow.cli.application import ANYWHERE
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.console.terminal import hide_credentials
from keras_bert_flow.files.paths import check_local, find_address
from keras_bert_flow.results.artifacts import publishing
from keras_bert_flow.text.corpus.inputs import is_remote

REFUSED = "must be on a local disk"
ELSEWHERE = [
    "gs://b/x",
    "s3://b",
    "hdfs://h:9000/x",
    "file:///tmp/x",
    "http://h/x",
    "x-y+z://a/b",
    "GS://b/x",
    "hf://o/n",
]


@pytest.mark.parametrize("path", ELSEWHERE)
@pytest.mark.parametrize("kind", [str, Path])  # a Path has one slash left of two
def test_scheme_is_refused(kind, path):
    with pytest.raises(ValueError, match=REFUSED) as caught:
        check_local(kind(path))
    assert "\n" not in str(caught.value) and path.split(":")[0] + "://" in str(caught.value)


@pytest.mark.parametrize(
    "path", ["x", "/tmp/gs:/x", "a:b", "a/b:/c", "../gs", "1a:/x", "a b://x", "out:put", "-", "bücher:/x", ""]
)
def test_local_path_is_taken(path):
    assert check_local(path) == check_local(Path(path)) == Path(path)


PASSWORDS = ["s3://AKIA:secret@b/x", "s3://AKIA:a/secret@b/x", "hdfs://me:1@secret@h:9870/x"]
OTHER_SIGNS = [
    "hdfs://me@h:9870/x",
    "hdfs://h:9870/a@b",
    "s3://b/a:b@c",
    "s3://arn:aws:s3:eu-1:1:accesspoint/p/a@b",
    "hf://o/n@v1",
]


@pytest.mark.parametrize(
    ("find", "path"),
    [
        (find_address, Path("s3://:secret@b")),
        *((find, path) for find in (find_address, is_remote) for path in PASSWORDS),
    ],
)
def test_password_in_an_address_is_refused_and_not_shown(find, path):
    with pytest.raises(ValueError, match=r"must not hold a password.*//\*\*\*@[bh]") as caught:
        find(path)
    assert "secret" not in str(caught.value) and "AKIA" not in str(caught.value)


@pytest.mark.parametrize("path", OTHER_SIGNS)
def test_other_signs_of_an_address_are_taken(path):
    assert find_address(path) == path and is_remote(path)


def list_commands(group, *names):
    """Yield (words, command) for every command, those of groups within included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from list_commands(command, *names, name)
        else:
            yield (*names, name), command


COMMANDS = dict(list_commands(typer.main.get_command(app)))


def path_options():
    """Return (command, option) for everything that is given as a `Path`."""
    for name, command in sorted(COMMANDS.items()):
        for parameter, kind in get_type_hints(command.callback).items():
            if kind is Path or Path in get_args(kind):
                yield pytest.param(name, parameter, id=" ".join([*name, parameter]))


def arguments_with(command, chosen, value):
    """Return arguments for a command: a value for one parameter, and `x` for every other one that it needs."""
    arguments = []
    for parameter in COMMANDS[command].params:
        given = value if parameter.name == chosen else "x" if parameter.required else None
        if given is not None:
            arguments += [given] if parameter.param_type_name == "argument" else [parameter.opts[0], given]
    return [*command, *arguments]


def test_options_that_are_paths_are_found():
    found = {tuple(parameter.values) for parameter in path_options()}
    outputs = {"corpus", "predict", "search", "glue-zip"}
    assert {((command,), "output") for command in outputs} <= found
    inputs = [("pretrain", "records"), ("finetune", "model"), ("records", "vocab"), ("search", "index")]
    assert {((command,), option) for command, option in inputs} <= found


@pytest.mark.parametrize(("command", "option"), list(path_options()))
def test_commands_refuse_paths_at_other_places(command, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if option in ANYWHERE:  # they may be elsewhere, but not anywhere
        with pytest.raises(
            ValueError, match=r"remote address must begin with one of .*s3.*Received: nowhere://bucket/x\."
        ):
            app(arguments_with(command, option, "nowhere://bucket/x"), standalone_mode=False)
        return
    with pytest.raises(ValueError, match=rf"{option.replace('_', '-')} {REFUSED}.*Received: gs://bucket/x\."):
        app(arguments_with(command, option, "gs://bucket/x"), standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


ADDRESSES = {"vocab": ("input", "output"), "records": ("input", "output"), "init": ("text",), "doctor": ("path",)}
ADDRESSES |= dict.fromkeys(("pretrain", "finetune", "distill", "report"), ("output",))


def address_options():
    """Return (command, option) for everything that is given as a path or an address."""
    for command, names in ADDRESSES.items():
        yield from (pytest.param((command,), name, id=f"{command} {name}") for name in names)
    yield from path_options()


@pytest.mark.parametrize(("command", "option"), list(address_options()))
def test_commands_refuse_passwords(command, option, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError)) as caught:  # some look first at what else they need
        app(arguments_with(command, option, "s3://AKIA:secret@bucket/x"), standalone_mode=False)
    assert "secret" not in str(caught.value) + "".join(capfd.readouterr())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("setting", ["vocabulary.file"])
def test_configuration_refuses_paths_at_other_places(setting):
    with pytest.raises(ValueError, match=rf"`{setting}`.*{REFUSED}.*Received: s3://bucket/x\."):
        load_config(None, [f"{setting}=s3://bucket/x"])
    assert load_config(None, ["corpus.input=[s3://bucket/x]"]).corpus.input == ("s3://bucket/x",)


@pytest.mark.parametrize("setting", ["runs={}", "corpus.input=[x, {}]", "task.train={}", "matrix.tasks=[x, {}]"])
def test_configuration_refuses_passwords(setting):
    with pytest.raises(ValueError, match=r"must not hold a password.*Received: one in s3://\*\*\*@b/x\.") as caught:
        load_config(None, [setting.format("s3://AKIA:secret@b/x")])
    assert "secret" not in str(caught.value)


def build_vocabulary(output):
    from beam_jobs.build_vocabulary import build_vocabulary

    config = PipelineConfig()
    build_vocabulary(config.corpus, config.vocabulary, output)


def build_records(output):
    from beam_jobs.build_records import build_records

    config = PipelineConfig()
    build_records(config.corpus, config.records, "none.txt", False, output)


def publish_builtin(output):
    from keras_bert_flow.results.stages.data import publish_builtin

    publish_builtin(output)


def pretrain(output):
    from keras_bert_flow.training.pretraining.pretrain import pretrain

    pretrain(PipelineConfig(), "none", output)


def finetune(output):
    from keras_bert_flow.training.finetuning.finetune import finetune

    finetune(PipelineConfig(), "none", output)


def write_evaluation(output):
    from keras_bert_flow.evaluation.evaluate import write_evaluation

    write_evaluation(PipelineConfig(), "none", "none", "none", output)


def search(output):
    from keras_bert_flow.prediction.search import SemanticSearch

    SemanticSearch("none", "none.txt", output)


def write_lines(output):
    from keras_bert_flow.prediction.lines import write_lines

    write_lines(iter([]), output)


def write_arrays(output):
    from keras_bert_flow.prediction.lines import write_arrays

    write_arrays(iter([]), output)


def write_official(output):
    from keras_bert_flow.tasks.formats.glue import write_official
    from keras_bert_flow.tasks.registry import make_task

    write_official(output, make_task("classification"), [], [])


def write_submission(output):
    from keras_bert_flow.tasks.formats.glue import write_glue_submission

    write_glue_submission(output, {})


def save_model(output):
    from keras_bert_flow.conversion.model_directory import save_model_directory

    save_model_directory(None, output)


def export_model(output):
    from keras_bert_flow.export.export_model import export_model

    export_model("none", output, "onnx")


def publish_folder(output):
    with publishing(output):
        raise AssertionError("a folder was made")


WRITERS = [
    build_vocabulary,
    build_records,
    publish_builtin,
    pretrain,
    finetune,
    write_evaluation,
    search,
    write_lines,
    write_arrays,
    write_official,
    write_submission,
    save_model,
    export_model,
    publish_folder,
]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
@pytest.mark.parametrize("kind", [str, Path])
def test_functions_refuse_outputs_at_other_places(write, kind, tmp_path, monkeypatch):
    if kind is str and write in (build_vocabulary, build_records):
        pytest.skip("Beam publishes there: tests/beam_jobs/test_remote_places.py")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"{REFUSED}.*Received: gs://bucket/x"):
        write(kind("gs://bucket/x"))
    assert list(tmp_path.iterdir()) == []


HIDDEN = [
    ("http://u:SECRET@h:5000/x", "http://***@h:5000/x"),
    ("https://SECRET@h/x", "https://***@h/x"),
    ("https://u:a:SECRET@h/x?y=1", "https://***@h/x?y=1"),
    ("postgresql+asyncpg://u:SECRET@db/x", "postgresql+asyncpg://***@db/x"),
    ("s3://AKIA:a/SECRET@b/x", "s3://***@b/x"),
    ("hdfs://me:1@SECRET@h:9870/x", "hdfs://***@h:9870/x"),
    ("http:/u:SECRET@h", "http:/***@h"),
    ("url: /a?X-Amz-Signature=SECRET&b=2", "url: /a?X-Amz-Signature=***&b=2"),
    ("https://h/x?b=2&access_token=SECRET#c", "https://h/x?b=2&access_token=***#c"),
    ("https://h/x?sv=1&sig=SECRET'", "https://h/x?sv=1&sig=***'"),
    ("'http://u:SECRET@h', 'b@c'", "'http://***@h', 'b@c'"),
    ("nonnumeric port: 'Sx/ECRET@h'", "nonnumeric port: '***@h'"),  # what the environment holds, decoded by a library
    ("password Sx%2FECRET", "password ***"),
]
SHOWN = [
    *(path for path in OTHER_SIGNS if not path.startswith("hf://")),
    "hf://org@v1",
    "hf://o/n@v1",
    "gs://b/a:b@c",
    "http://[::1]:80/a@b",
    "http://127.0.0.1:4200/api, set in the profile a@b",
    "see me@x.org at 10:30",
    "a?token of b",
]


@pytest.mark.parametrize(("text", "hidden"), HIDDEN)
def test_credentials_in_addresses_are_hidden(monkeypatch, text, hidden):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://u:Sx%2FECRET@h:5000")
    assert hide_credentials(f"No answer: {text}") == f"No answer: {hidden}"


@pytest.mark.parametrize("text", SHOWN)
def test_what_is_no_credential_is_shown(text):
    assert hide_credentials(text) == text


@pytest.mark.parametrize("address", ["https://b.s3.aws/x.tsv?X-Amz-Signature=SECRET", "gs://b/x?token=SECRET"])
def test_address_with_a_signature_is_refused(address):
    with pytest.raises(ValueError, match="must not hold a token or a signature") as caught:
        find_address(address)
    assert "SECRET" not in str(caught.value)
    for setting in (f"task.train={address}", "beam=[--flink_master=http://me:SECRET@h:8081]"):
        with pytest.raises(ValueError, match="must not hold") as caught:
            load_config(None, [setting])
        assert "SECRET" not in str(caught.value)
