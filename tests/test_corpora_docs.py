"""What docs/corpora.md promises: its script turns a dump into a corpus, and its endings are those that are read."""

import bz2
import json
import re
import subprocess
import sys
from pathlib import Path

from keras_bert_flow.text.corpus.documents import ReadingRule, read_documents
from keras_bert_flow.text.corpus.inputs import SUFFIXES
from tests.patience import PATIENCE_SECONDS

DOCS = (Path(__file__).parents[1] / "docs" / "corpora.md").read_text(encoding="utf-8")
ARTICLE = """{{Infobox|name={{lang|en|Rome}}|size=3}}
[[File:Rome.jpg|thumb|A view of [[Rome]] &amp; hills]]
'''Rome''' is the [[capital city|capital]] of [[Italy]].&lt;ref name="a"&gt;[[A]].&lt;/ref&gt; It &lt;b&gt;is&lt;/b&gt;
== History ==
{| class="wikitable"
! year !! people
|-
| 1 || {{nts|1000}}
|}
* a list
See [https://example.org the page]&lt;ref name="a" /&gt; &lt;!-- hidden --&gt;for AT&amp;amp;T, ''café''.
[[Category:Cities]]
"""
PAGE = "<page><title>{0}</title><ns>{1}</ns>{2}<revision><text>{3}</text></revision></page>"
EXPECTED = [
    "Rome is the capital of Italy. It is",
    "See the page for AT&T, café.",
]


def make_dump():
    pages = [
        PAGE.format("Rome", 0, "", ARTICLE),
        PAGE.format("Roma", 0, '<redirect title="Rome" />', "#REDIRECT [[Rome]]"),
        PAGE.format("Talk:Rome", 1, "", "Chatter."),
        PAGE.format("Nothing", 0, "", ""),
        PAGE.format("Oslo", 0, "", "Oslo is in [[Norway]]."),
    ]
    return f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/">{"".join(pages)}</mediawiki>'.encode()


def test_script_of_the_docs_turns_a_dump_into_a_corpus(tmp_path):
    (script,) = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    (tmp_path / "dump.py").write_text(script, encoding="utf-8")
    dump = make_dump()
    (tmp_path / "dump.xml.bz2").write_bytes(bz2.compress(dump[:500]) + bz2.compress(dump[500:]))  # multistream
    command = [sys.executable, "dump.py", "dump.xml.bz2", "out.jsonl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"].split("\n") for line in lines] == [EXPECTED, ["Oslo is in Norway."]]
    documents = read_documents(str(tmp_path / "out.jsonl"), ReadingRule(split_lines=False))
    assert [document.sentences for document in documents] == [tuple(EXPECTED), ("Oslo is in Norway.",)]


def test_docs_name_every_ending():
    table = DOCS.split("| ends in |")[1].split("\n\n")[0]
    named = set(re.findall(r"`(\.\w+)`", table))
    assert named == {part for suffix in SUFFIXES for part in re.findall(r"\.\w+", suffix)}
