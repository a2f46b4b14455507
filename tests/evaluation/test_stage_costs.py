import json

from keras_bert_flow.evaluation.page import describe_costs, gather_costs, summarise_costs
from keras_bert_flow.results.manifest import COSTS
from keras_bert_flow.results.publishing import Contents, publish

HOUR = {"began": "2026-11-27T01:02:03+00:00", "seconds": 3600.04, "processor_seconds": 7000.5, "peak_bytes": 5_000_000}


def publish_with(folder, *costs):
    publish(folder, "records", folder.name, lambda work: Contents())
    (folder / COSTS).write_text("".join(json.dumps(cost) + "\n" for cost in costs))
    return folder


def test_costs_of_stages_are_added_up_and_summarised(tmp_path):
    parts = [HOUR | {"machine": "one"}, HOUR | {"began": "2026-11-28T04:05:06+00:00", "seconds": 61, "machine": "two"}]
    twice, unknown = publish_with(tmp_path / "0f", *parts), publish_with(tmp_path / "0e")
    rows = gather_costs({unknown: 12.34, twice: 1.0})
    table, note = describe_costs(rows)
    cells = [cell.split("<")[0] for cell in table.replace("<code>", "").split("<td")[1:]]
    assert [cell.split(">", 1)[1] for cell in cells] == [
        *("0e", "", "12.3", "", ""),
        *("0f", "2026-11-27 01:02, in 2 parts", "3,661.0", "14,001.0", "5"),
    ]
    assert "records: one and two" in note
    assert summarise_costs(rows, "jax") == "2026-11-27, jax on one and two: 1 h 1 min 13 s in all stages."


def test_nothing_is_said_where_nothing_is_known(tmp_path):
    rows = gather_costs({publish_with(tmp_path / "0e"): None})
    assert summarise_costs(rows, "jax") == "" and describe_costs(rows)[1] == ""
