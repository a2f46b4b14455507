"""Usage section of a report: commands to copy, to use its model and to repeat the run."""

import shlex
from pathlib import Path

# Kind of a task → arguments of `kbf predict`; one text unless listed
QUESTIONS = {
    "multiple_choice": "--input QUESTIONS --output answers.jsonl",
    "question_answering": "--input QUESTIONS --output answers.jsonl",
}
ONE_TEXT = '"a text"'


def write_commands(model: Path, kind: str, backend: str) -> str:
    """Return shell commands.

    Args:
        model: the fine-tuned model directory to use.
        kind: kind of its task.
        backend: backend of the run.
    """
    folder = shlex.quote(str(model))
    lines = [
        ("this run once more, with the configuration below", f"kbf run mine.yaml --backend {backend}"),
        ("ask the model", f"kbf predict --model {folder} {QUESTIONS.get(kind, ONE_TEXT)}"),
        ("measure it on another table", f"kbf evaluate --config mine.yaml --set task.dev=OTHER --model {folder}"),
        ("for onnxruntime, TensorFlow Serving or phones", f"kbf export {folder} served --format onnx"),
        ("for KerasHub, or google-research/bert", f"kbf convert {folder} converted --format kerashub"),
    ]
    return "\n\n".join(f"# {what}\n{command}" for what, command in lines)


def write_python(model: Path) -> str:
    """Return Python code that loads the model, a directory in Hugging Face's layout."""
    folder = repr(str(model))
    return f"""import keras_bert_flow
keras_bert_flow.load({folder}).predict(["a text"])  # on TensorFlow, JAX or PyTorch

import transformers  # which class it is, README.md of the folder says
transformers.AutoTokenizer.from_pretrained({folder})"""
