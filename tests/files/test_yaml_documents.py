import datetime
import subprocess
import sys

import pytest

from keras_bert_flow.config.loading import load_config
from keras_bert_flow.files.documents import MAX_YAML_BYTES, parse_yaml

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 12)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(
    f"a{level}: &a{level}\n  <<: [*a{level - 1}, *a{level - 1}]\n" for level in range(1, 40)
)
HOSTILE = {
    "aliases": BOMB,
    "merges": MERGES,
    "itself": "a: &a [*a]",
    "brackets": "a: " + "[" * 100_000,
    "lines": "".join(f"{' ' * level}a:\n" for level in range(900)),
    "repeated": "seed: 1\nseed: 2\n",
    "python": "a: !!python/object/apply:os.system [id]",
    "tag": "a: !!int x",
    "truth": "a: !!bool x",
    "date": "a: !!timestamp 2020-13-45",
    "digits": "a: !!int " + "9" * 6000,
    "tab": "a:\n\t- b",
    "nul": "a: \0",
    "not UTF-8": b"a: \xff\xfe",
    "large": "#" * (MAX_YAML_BYTES + 1),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_parse_yaml_refuses_hostile_documents_in_one_line(text):
    with pytest.raises(ValueError) as refusal:
        parse_yaml(text)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 600


def test_parse_yaml_keeps_aliases_merges_and_numbers():
    text = "a: &a {b: 1, c: 2}\nd: {<<: *a, c: 3}\ne: *a\nf: 1e6\n"
    assert parse_yaml(text) == {"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}, "e": {"b": 1, "c": 2}, "f": 1e6}


def test_parse_yaml_leaves_dates_as_text():
    assert parse_yaml("2020-01-01") == "2020-01-01"
    assert not isinstance(parse_yaml("a: 2020-01-01 10:00:00")["a"], datetime.date)


def test_parse_yaml_takes_long_numbers_for_text():
    assert parse_yaml("9" * 6000) == "9" * 6000
    assert parse_yaml("0x" + "f" * 6000) == "0x" + "f" * 6000


@pytest.mark.parametrize("value", ["9" * 6000, BOMB, "[" * 5000, "2020-01-01", "\x1b[31m"], ids=range(5))
def test_overrides_are_refused_with_a_short_message(value):
    with pytest.raises(ValueError) as refusal:
        load_config(None, [f"pretraining.total_steps={value}"])
    assert len(str(refusal.value)) < 1000


def test_alias_bomb_takes_little_memory(tmp_path):
    (tmp_path / "bomb.yaml").write_text(BOMB)
    limit = 1 << 30
    code = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))\n"
    code += f"from keras_bert_flow.config.loading import load_config; load_config({str(tmp_path / 'bomb.yaml')!r})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "ValueError: A configuration must be plain YAML" in run.stderr


def test_words_for_yes_and_no_are_strings_as_in_yaml_1_2():
    text = "[no, Yes, on, OFF, y, n, true, False, TRUE]"
    assert parse_yaml(text) == ["no", "Yes", "on", "OFF", "y", "n", True, False, True]
