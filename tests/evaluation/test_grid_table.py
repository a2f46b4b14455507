import json

from keras_bert_flow.evaluation.summary import align
from keras_bert_flow.evaluation.tables import grid_rows, other_seconds, read_grid


def point(rate, epochs, score, seconds, runs=2):
    settings = {"learning_rate": rate, "batch_size": 16, "epochs": epochs}
    return {"name": f"{rate}-{epochs}", **settings, "score": score, "seconds": seconds, "runs": [{}] * runs}


GRID = {
    "kind": "classification",
    "main_metric": "accuracy",
    "chosen": "2e-05-3",
    "points": [
        point(5e-5, 2, {"mean": 0.5, "standard_deviation": 0.0}, 1234.5),
        point(2e-5, 3, {"mean": 0.875, "standard_deviation": 0.0123}, 20.0),
        point(0.1, 3, None, None, runs=1),
    ],
}


def test_every_point_has_a_row_and_the_chosen_one_is_marked():
    assert grid_rows(GRID) == [
        ["learning rate", "batch size", "epochs", "accuracy %", "runs", "seconds", ""],
        ["5e-05", "16", "2", "50.0", "2", "1,234.5", ""],
        ["2e-05", "16", "3", "87.5 ± 1.2", "2", "20.0", "chosen"],
        ["0.1", "16", "3", "not finite", "1", "", ""],
    ]
    assert grid_rows(GRID | {"kind": "regression", "main_metric": "spearman"})[2][3] == "0.875 ± 0.012"


def test_text_is_aligned():
    lines = align(grid_rows(GRID)).splitlines()
    assert [line.split() for line in lines[1:]] == [" ".join(row).split() for row in grid_rows(GRID)[1:]]
    assert len({line.rfind(" ± ") for line in lines} - {-1}) == 1 and lines[2].endswith("20.0  chosen")


def test_time_of_the_others_is_counted_once(tmp_path):
    assert other_seconds(GRID) == 1234.5
    assert other_seconds(read_grid(tmp_path)) == 0.0
    (tmp_path / "grid.json").write_text(json.dumps(GRID))
    assert read_grid(tmp_path) == GRID
