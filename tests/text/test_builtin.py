import sys
from collections import Counter

import pytest

from keras_bert_flow.text.corpus import builtin
from keras_bert_flow.text.corpus.builtin import (
    PROJECTS,
    builtin_digest,
    builtin_documents,
    builtin_task,
    write_builtin_corpus,
    write_builtin_task,
)

DOCSTRING = '''
def walk(path):
    """Walk along the path and visit
    every node that is on it.

    Parameters
    ----------
    path : list of int
        The nodes to be visited, in the
        order of the walk.

    Some code is shown below::

        the code should not be seen as prose here

    What else there is to know
    --------------------------
    - A bullet that is long enough to need
      a second line in the source.

    >>> walk([1, 2, 3]) and some words that look like prose
    A fence may follow a line of text:
    ```
    another line of code that looks like prose
    ```
    See :func:`~here.there.jump` for another way to do it.
    """
'''


@pytest.fixture
def projects(tmp_path, monkeypatch):
    """Small stand-ins for the real projects; returns their folder."""
    for project in PROJECTS:
        (tmp_path / project / "tests").mkdir(parents=True)
        for index in range(30):
            text = f"A sentence of {project[::-1]} with the number {index} that is its own text."
            (tmp_path / project / f"module_{index:02}.py").write_text(f'"""{text}"""\n', encoding="utf-8")
        for name in ("tests/helper.py", "walk_test.py", "walk_pb2.py"):
            (tmp_path / project / name).write_text('"""This text must not be taken from any test."""\n')
    monkeypatch.setattr(builtin, "_find_root", lambda project: tmp_path / project)
    builtin._read_modules.cache_clear()
    yield tmp_path
    builtin._read_modules.cache_clear()


def test_builtin_documents_are_the_prose_of_docstrings(projects):
    (projects / "numpy" / "__init__.py").write_text(DOCSTRING, encoding="utf-8")
    assert dict(builtin_documents())["numpy"].split("\n") == [
        "Walk along the path and visit every node that is on it.",
        "The nodes to be visited, in the order of the walk.",
        "Some code is shown below:",
        "- A bullet that is long enough to need a second line in the source.",
        "A fence may follow a line of text:",
        "See here.there.jump for another way to do it.",
    ]


def test_builtin_documents_come_in_a_fixed_order_without_tests(projects):
    names = [name for name, _ in builtin_documents()]
    assert names[:2] == ["module_00", "module_01"]
    assert names[30:32] == ["numpy.module_00", "numpy.module_01"]
    assert len(names) == len(set(names)) == 30 * len(PROJECTS)


def test_builtin_documents_hold_no_paragraph_twice(projects):
    copied = '"""A sentence of ymnun that two modules share between them."""\n'
    (projects / "scipy" / "copy_a.py").write_text(copied)
    (projects / "scipy" / "copy_b.py").write_text(copied)
    names = [name for name, _ in builtin_documents()]
    assert "scipy.copy_a" in names
    assert "scipy.copy_b" not in names


def test_builtin_documents_take_nested_and_conditional_definitions(projects):
    source = 'if True:\n  class A:\n    async def f(self):\n      """Say what the nested function is good for."""\n'
    (projects / "keras" / "nested.py").write_text(source)
    (projects / "keras" / "broken.py").write_text('"""A file that does not parse is left out""" (\n')
    documents = dict(builtin_documents())
    assert documents["keras.nested"] == "Say what the nested function is good for."
    assert "keras.broken" not in documents


def test_builtin_documents_take_the_help_topics(projects):
    (projects / "python" / "pydoc_data").mkdir()
    topics = "topics = {'b': 'The second topic is told in one line.\\n', 'a': 'The first topic is\\ntold in two.'}\n"
    (projects / "python" / "pydoc_data" / "topics.py").write_text(topics)
    assert list(builtin_documents())[-2:] == [
        ("pydoc_data.topics.a", "The first topic is told in two."),
        ("pydoc_data.topics.b", "The second topic is told in one line."),
    ]


def test_builtin_documents_hold_no_lone_surrogates(projects, tmp_path):
    (projects / "keras" / "odd.py").write_text('"""A lone surrogate \\ud800 cannot be written to any file."""\n')
    assert dict(builtin_documents())["keras.odd"] == "A lone surrogate cannot be written to any file."
    assert write_builtin_corpus(tmp_path).stat().st_size > 0


def test_builtin_task_keeps_modules_apart_and_names_no_project(projects):
    giveaway = '"""This text says that it belongs to NumPy, so it is too easy."""\n'
    (projects / "numpy" / "giveaway.py").write_text(giveaway)
    train, dev = builtin_task()
    assert not {text for text, _ in train} & {text for text, _ in dev}
    assert {label for _, label in train} == set(PROJECTS)
    assert len(train) + len(dev) == 30 * len(PROJECTS)
    assert 0.05 < len(dev) / (len(train) + len(dev)) < 0.30  # 180 modules at 15%: 3 standard deviations are 8%
    assert not any("NumPy" in text for text, _ in train + dev)


def test_builtin_task_keeps_a_module_on_one_side(projects):
    for name in "abcdefgh":
        functions = [
            f'def f{i}():\n    """Text {i} that only the module {name} holds, and no other."""' for i in range(9)
        ]
        (projects / "scipy" / f"many_{name}.py").write_text("\n".join(functions))
    sides = [{text.split()[6] for text, _ in side if text.startswith("Text")} for side in builtin_task()]
    assert sides[0] | sides[1] == {f"{name}" for name in "abcdefgh"}
    assert not sides[0] & sides[1]


def test_builtin_task_caps_each_class(projects, monkeypatch):
    monkeypatch.setattr(builtin, "MAX_TRAIN_ROWS", 7)
    train, _ = builtin_task()
    assert Counter(label for _, label in train) == dict.fromkeys(PROJECTS, 7)
    assert [label for _, label in train] != sorted(label for _, label in train)


def test_builtin_task_cuts_texts_at_paragraphs(projects):
    paragraph = "Word after word is put down here until the line is full. " * 3
    (projects / "keras" / "long.py").write_text(f'"""{paragraph}\n\n{paragraph}\n\n{paragraph}"""\n')
    rows = [text for side in builtin_task() for text, _ in side if text.startswith("Word")]
    assert rows == [f"{paragraph}{paragraph}".strip()]


def test_builtin_files_have_the_formats_that_readers_expect(projects, tmp_path):
    corpus = write_builtin_corpus(tmp_path).read_text(encoding="utf-8")
    assert corpus == "\n".join(f"{text}\n" for _, text in builtin_documents())
    assert len(corpus.split("\n\n")) == 30 * len(PROJECTS)
    for path, rows in zip(write_builtin_task(tmp_path), builtin_task(), strict=True):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0] == "text\tlabel"
        assert [tuple(line.split("\t")) for line in lines[1:]] == rows


def test_builtin_says_how_to_install_what_is_missing(monkeypatch):
    monkeypatch.setattr(builtin, "PROJECTS", ("python", "no_such_project"))
    with pytest.raises(FileNotFoundError, match=r"no_such_project.*pip install 'keras-bert-flow\[beam,flows\]'"):
        builtin_digest()


def test_builtin_digest_follows_the_versions(monkeypatch):
    before = builtin_digest()
    assert before == builtin_digest()
    monkeypatch.setattr(builtin.importlib.metadata, "version", lambda project: "0.0")
    assert builtin_digest() != before


@pytest.mark.slow
def test_builtin_corpus_and_task_of_this_machine_are_large_enough():
    imported = {name for name in PROJECTS if name in sys.modules}
    documents = dict(builtin_documents())
    train, dev = builtin_task()
    assert {name for name in PROJECTS if name in sys.modules} == imported
    assert sum(map(len, documents.values())) > 5_000_000
    assert len(documents) > 1500
    assert Counter(label for _, label in train) == dict.fromkeys(PROJECTS, builtin.MAX_TRAIN_ROWS)
    assert min(Counter(label for _, label in dev).values()) >= 60
    assert all(40 <= len(text) <= 400 and "\t" not in text and "\n" not in text for text, _ in train + dev)
    assert all("\n\n" not in text for text in documents.values())
