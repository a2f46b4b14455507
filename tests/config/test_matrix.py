import pytest

from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.pipeline import MOST_CELLS, MatrixConfig, list_cells

FILE = """
backend: jax
task: {name: first, train: a.tsv, dev: b.tsv}
matrix:
  variants:
  - {model.family: bert, records.objective: mlm_nsp}
  - {model.family: roberta, records.objective: mlm}
  over:
    task:
    - {name: first, train: a.tsv, dev: b.tsv}
    - {kind: regression, name: second, train: c.tsv, dev: d.tsv}
    task.text: [sentence]
    backend: [jax, torch]
"""


def test_cells_are_every_combination_as_a_configuration_each(tmp_path):
    path = tmp_path / "many.yaml"
    path.write_text(FILE)
    cells = list_cells(load_config(path).matrix)
    assert len(cells) == 8
    assert cells[0].label == "model.family=bert, records.objective=mlm_nsp, task=first, task.text=sentence, backend=jax"
    made = [load_config(path, cell.overrides) for cell in cells]
    assert {(one.model.family, one.task.name, one.task.kind, one.backend) for one in made} == {
        (family, *task, backend)
        for family in ("bert", "roberta")
        for task in (("first", "classification"), ("second", "regression"))
        for backend in ("jax", "torch")
    }
    assert all(one.matrix is None and one.task.text == "sentence" for one in made)
    assert all((one.records.objective == "mlm") == (one.model.family == "roberta") for one in made)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "from 1 to 256 runs. Received: 0"),
        ({"over": {"seed": list(range(MOST_CELLS + 1))}}, "Received: 257"),
        ({"over": {f"model.options.{number}": list(range(99)) for number in range(99)}}, "from 1 to 256 runs"),
        ({"over": {"seed": [1, 1]}}, "Received: seed=1, twice"),
        ({"over": {"task": [{"train": "a"}, {"train": "a"}]}}, "twice. Give each section a `name`"),
    ],
)
def test_matrix_without_runs_or_with_equal_ones_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        list_cells(MatrixConfig(**values))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{over: {seed: []}}", "must have a value of each setting. Received: none of `seed`"),
        ("{over: {runs: [a, b]}}", "must not change `runs`"),
        ("{variants: [{matrix.at_once: 2}]}", "must not change `matrix.at_once`"),
        ("{over: {seed: 1}}", "valid list"),
        ("{at_once: 0}", "at_once"),
        ("{ower: {}}", "Valid names: over, variants, at_once"),
    ],
)
def test_what_a_matrix_may_not_be_is_refused_in_one_line(line, message, tmp_path):
    path = tmp_path / "many.yaml"
    path.write_text(f"matrix: {line}")
    with pytest.raises(ValueError, match=message) as error:
        load_config(path)
    assert "\n" not in str(error.value)
