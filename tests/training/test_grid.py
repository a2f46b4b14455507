"""A grid: every point trained once, the best by its mean chosen and published, a kill at any moment changing nothing.

The same on each backend, as fine-tuning is; what differs there, `test_finetune.py` has.
"""

import itertools
import json
import signal

import keras
import numpy as np
import pytest

from keras_bert_flow.cli import app
from keras_bert_flow.config.finetuning import GridConfig
from keras_bert_flow.evaluation.evaluate import evaluate_model
from keras_bert_flow.evaluation.summary import align
from keras_bert_flow.evaluation.tables import grid_rows, read_grid
from keras_bert_flow.results.manifest import check_folder
from keras_bert_flow.tasks.core.metrics import summarise_runs
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.finetuning.grid import Point, find_best, list_points
from keras_bert_flow.training.loop.logs import read_log
from tests.training.kill_server import Killer
from tests.training.separable_task import make_task_config, weights_of

pytestmark = pytest.mark.any_backend

# The first rate, whose point comes first, learns nothing.
GRID = {"learning_rate": [1e-6, 0.01, 0.03], "epochs": [2], "batch_size": [8]}
SETTINGS = {"grid": GRID, "publish": "best", "compare_random": False}


def config_of(place, **changes):
    backend = keras.backend.backend()  # as the command has it
    return make_task_config(place, **SETTINGS | changes).model_copy(update={"backend": backend})


def silent(line):
    pass


def without_times(grid):
    points = [
        point | {"seconds": 0, "runs": [run | {"seconds": 0} for run in point["runs"]]} for point in grid["points"]
    ]
    return grid | {"points": points}


@pytest.fixture(scope="module")
def told():
    """The lines that the grid of `searched` reported after it was killed in its second point."""
    return []


@pytest.fixture(scope="module")
def searched(place, told):
    class Killed(BaseException):
        pass

    def die_in_the_second_point(line):
        if line["run"].startswith("rate-0.01"):
            raise Killed

    config, output = config_of(place), place / "searched"
    with pytest.raises(Killed):
        finetune(config, place / "model", output, die_in_the_second_point)
    other = config_of(place, grid=GRID | {"epochs": [2, 3]})
    with pytest.raises(ValueError, match=r"another finetuning\.grid\.epochs \(\[2\], now \[2, 3\]\)\. Undo"):
        finetune(other, place / "model", output, silent)
    return finetune(config, place / "model", output, told.append)


def test_points_come_cheapest_first_whatever_the_order_of_the_grid():
    grid = GridConfig(learning_rate=(3e-5, 5e-5), epochs=(3, 2), batch_size=(16, 32))
    cheap = [Point(rate, 2, 32) for rate in (3e-5, 5e-5)]
    assert list_points(grid)[:3] == [*cheap, Point(3e-5, 2, 16)]
    assert [point.epochs for point in list_points(grid)] == [2] * 4 + [3] * 4
    assert len({point.name for point in list_points(GridConfig())}) == 3 * 3 * 2


def test_best_is_that_of_the_highest_mean_and_the_first_of_equals():
    scores = [None, (0.5, 0.9), (0.7, 0.7), (0.6, 0.8), None]
    rows = [{"score": values and summarise_runs([{"x": value} for value in values])["x"]} for values in scores]
    assert find_best(rows) is rows[1]
    rows[3]["score"]["mean"] = rows[1]["score"]["mean"] + 1e-9
    assert find_best(rows) is rows[3]
    assert find_best(rows[::4]) is None


def chosen_of(output):
    grid = read_grid(output)
    return next(point for point in grid["points"] if point["name"] == grid["chosen"])


@pytest.mark.slow
def test_finished_points_are_not_trained_again(searched, told):
    seeds = ("seed-1", "seed-2")
    points = [f"rate-{rate}-batch-8-epochs-2/{seed}" for rate in (0.01, 0.03) for seed in seeds]
    places = {(line["run"], line["run_number"]): line["run_count"] for line in told}
    assert [*places] == [*zip(points, (3, 4, 5, 6), strict=True)]  # two of the point before it
    assert set(places.values()) == {6}


@pytest.mark.slow
def test_command_finds_the_grid_and_prints_its_table(place, searched, capsys):
    values = config_of(place).model_dump(mode="json", include={"task", "finetuning"})
    (place / "task.yaml").write_text(json.dumps(values))  # JSON is YAML
    arguments = ["--model", place / "model", "--task", place / "task.yaml", "--output", searched, "--grid"]
    app(["finetune", *map(str, arguments)], standalone_mode=False)
    assert capsys.readouterr().out == f"{align(grid_rows(read_grid(searched)))}\n{searched}\n"


@pytest.mark.slow
def test_table_holds_what_the_logs_say_and_the_highest_mean_is_chosen(searched):
    grid = read_grid(searched)
    assert (grid["kind"], grid["main_metric"]) == ("classification", "accuracy")
    assert [point["learning_rate"] for point in grid["points"]] == GRID["learning_rate"]
    for point in grid["points"]:
        folder = searched / ("pretrained" if point["name"] == grid["chosen"] else f"grid/{point['name']}")
        logs = [read_log(folder / f"seed-{seed}") for seed in (1, 2)]
        assert [log[-1]["step"] for log in logs] == [20, 20]
        scores = [max(line["dev_accuracy"] for line in log if "dev_accuracy" in line) for log in logs]
        assert [run["score"] for run in point["runs"]] == scores
        assert point["score"]["mean"] == np.mean(scores)
        assert point["score"]["standard_deviation"] == pytest.approx(np.std(scores, ddof=1))
        assert point["seconds"] == pytest.approx(sum(run["seconds"] for run in point["runs"]))
    means = [point["score"]["mean"] for point in grid["points"]]
    assert chosen_of(searched)["score"]["mean"] == max(means) > means[0]


@pytest.mark.slow
def test_chosen_models_are_those_of_the_settings_without_a_grid(place, searched):
    rate, name = (chosen_of(searched)[field] for field in ("learning_rate", "name"))
    chosen = SETTINGS | {"grid": None, "learning_rate": rate, "epochs": 2, "batch_size": 8, "seeds": (2,)}
    plain = finetune(make_task_config(place, **chosen), place / "model", place / "plain", silent)
    assert weights_of(searched / "pretrained/seed-2") == weights_of(plain / "pretrained/seed-2")
    files = [{file.name for file in check_folder(folder, "finetuning").files} for folder in (plain, searched)]
    files[0] |= {name.replace("seed-2", "seed-1") for name in files[0]}
    losers = [point["name"] for point in read_grid(searched)["points"] if point["name"] != name]
    kept = itertools.product(losers, ("seed-1", "seed-2"), ("log.jsonl", "run.json"))
    assert files[1] - files[0] == {"grid.json", *("/".join(("grid", *names)) for names in kept)}
    assert files[0] <= files[1]


@pytest.mark.slow
def test_score_of_the_table_is_that_of_the_published_model(place, searched):
    config = config_of(place)
    for run in chosen_of(searched)["runs"]:
        assert evaluate_model(config, searched / f"pretrained/seed-{run['seed']}/model")["accuracy"] == run["score"]


@pytest.mark.slow
def test_of_equals_the_cheapest_is_chosen_and_random_weights_learn_at_it(place):
    grid = {"learning_rate": [1e-30], "epochs": [2, 1], "batch_size": [32]}  # nothing moves, so all score the same
    output = finetune(make_task_config(place, grid=grid, seeds=(1,)), place / "model", place / "equals", silent)
    found = read_grid(output)
    assert len(found["points"]) == 2 and len({point["score"]["mean"] for point in found["points"]}) == 1
    assert found["chosen"] == "rate-1e-30-batch-32-epochs-1"
    assert read_log(output / "pretrained/seed-1")[-1]["step"] == 3
    (point,) = read_grid(output, "grid-random.json")["points"]
    assert point["name"] == "rate-1e-30-batch-32-epochs-2"
    assert read_log(output / "random/seed-1")[-1]["step"] == 6 and not (output / "grid-random/seed-1").exists()


@pytest.mark.slow
def test_a_point_that_meets_infinity_is_told_and_not_chosen(place):
    grid = {"learning_rate": [1e38, 1e-6], "epochs": [1], "batch_size": [8]}
    config = make_task_config(place, grid=grid, compare_random=False)
    found = read_grid(finetune(config, place / "model", place / "infinite", silent))
    failed, other = found["points"]
    assert failed["score"] is failed["seconds"] is None
    assert len(failed["runs"]) == 1  # the second seed is not tried
    assert "must be" in failed["runs"][0]["failure"]
    assert "non_finite" not in failed["runs"][0]["failure"]  # which only pre-training has
    assert found["chosen"] == other["name"] and other["score"]
    grid = grid | {"learning_rate": [1e38]}
    with pytest.raises(ValueError, match=r"Received: 1, all with such runs; the first says: .* another grid") as caught:
        finetune(make_task_config(place, grid=grid), place / "model", place / "hopeless", silent)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_killed_grid_goes_on_where_it_was(place, searched):
    output = place / "killed grid"
    with Killer(model=place / "model", tables=place) as killer:
        whole = [*range(1, 21)]
        for moment, steps in (
            ("report:rate-0.01-batch-8-epochs-2/seed-1:14", [*whole, *whole, *range(1, 15)]),
            ("loser", [*range(11, 21), *whole]),  # from the checkpoint of that run on
            ("table", [*whole, *whole]),
            ("chosen", []),
        ):
            assert killer.run(output, moment, **SETTINGS)[:2] == (-signal.SIGKILL, steps), moment
            assert not output.exists(), moment
        assert killer.run(output, **SETTINGS)[:2] == (0, [])
    assert without_times(read_grid(output)) == without_times(read_grid(searched))
    for seed in (1, 2):
        run = f"pretrained/seed-{seed}"
        assert weights_of(output / run) == weights_of(searched / run)
        facts = [json.loads((folder / run / "run.json").read_text()) for folder in (output, searched)]
        assert facts[0]["score"] == facts[1]["score"]
