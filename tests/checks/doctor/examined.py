"""Records for the doctor, and what it says of them."""

from keras_bert_flow.checks.diagnose import examine_records
from tests.oracles.plain_records import make_many, publish_plain

ROWS = make_many(400)


def verdicts(diagnosis) -> dict[str, str]:
    return {finding.what: finding.verdict for finding in diagnosis.findings}


def not_ok(diagnosis) -> dict[str, str]:
    return {what: verdict for what, verdict in verdicts(diagnosis).items() if verdict != "ok"}


def find(diagnosis, what):
    (finding,) = [finding for finding in diagnosis.findings if finding.what == what]
    return finding


def examine(tmp_path, rows, sample=100_000, **settings):
    return examine_records(publish_plain(tmp_path / "records", rows, **settings), sample=sample)
