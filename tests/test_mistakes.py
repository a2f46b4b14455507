import pytest

from keras_bert_flow.cli.application import explain


@pytest.mark.parametrize("error", [MemoryError(), MemoryError("Unable to allocate\n 47 GiB")])
def test_full_memory_is_one_line(capsys, error):
    assert explain(error) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("kbf: The work must fit in memory.") and printed.count("\n") == 1


def test_worker_that_was_killed_is_no_mistake_of_the_user(capsys):
    assert explain(ChildProcessError("A worker process was killed by signal 9.")) == 1
    assert capsys.readouterr().err == "kbf: A worker process was killed by signal 9.\n"


def test_names_in_a_mistake_are_escaped_in_files_as_well(capsys):
    """A message is one line wherever it goes."""
    assert explain(ValueError("Received: \x1b]0;pwned\x07\u202e\u2028.")) == 2
    assert capsys.readouterr().err == "kbf: Received: \\x1b]0;pwned\\x07\\u202e .\n"
