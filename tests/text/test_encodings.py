"""The command that a message prints converts the file that it is printed for."""

import gzip
import re
import subprocess

import pytest

from keras_bert_flow.tasks.formats.tables import read_table
from keras_bert_flow.text.corpus.lines import suggest_conversion
from tests.patience import PATIENCE_SECONDS

ROWS = "text,label\nun café,1\nÜbung macht,0\n"
COMMAND = re.compile(r"with ((?:gunzip|iconv|tr) .*? > NEW)")


@pytest.mark.parametrize("name", ["t.csv", "a b's.csv", "t.csv.gz"])
@pytest.mark.parametrize(
    ("content", "named"),
    [
        (ROWS.encode("latin-1"), "WINDOWS-1252"),
        (ROWS.encode("cp1252"), "WINDOWS-1252"),
        (ROWS.encode("utf-16"), ""),
        (ROWS.replace("\n", "\r\n").encode("utf-16"), ""),
        (b"\xfe\xff" + ROWS.encode("utf-16-be"), ""),
        (ROWS.encode("utf-16-le"), ""),
        (ROWS.encode("utf-16-be"), ""),
        (ROWS.replace("text", "té", 1).encode("utf-16-le"), ""),  # its first line is not UTF-8 either
        (ROWS.replace("\n", "\r").encode(), ""),
        (ROWS.replace("macht", "ma\0cht").encode(), ""),
    ],
)
def test_printed_command_works_on_the_file(tmp_path, name, content, named):
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(ValueError, match="NEW") as caught:
        read_table(path, text="té" if "té".encode("utf-16-le") in content else "text")
    command = COMMAND.search(str(caught.value)).group(1).replace("ENCODING", named)
    subprocess.run(command, shell=True, cwd=tmp_path, check=True, timeout=PATIENCE_SECONDS)
    (tmp_path / "NEW").rename(tmp_path / "new.csv")
    table = read_table(tmp_path / "new.csv", text="té" if "té".encode("utf-16-le") in content else "text")
    assert (table.texts, table.labels) == (("un café", "Übung macht"), ("1", "0"))


def test_file_that_is_not_known_is_left_to_the_reader():
    assert "iconv -f ENCODING -t UTF-8 < FILE > NEW" in suggest_conversion(b"caf\xe9")
