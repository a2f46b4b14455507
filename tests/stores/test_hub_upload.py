"""A model is sent to the Hub in one commit, and what cannot be sent is one line and leaves nothing there."""

import shutil
import subprocess

import pytest

from keras_bert_flow.stores.hub import check_push, is_branch_name, write_license
from tests.commands import assert_refused, kbf
from tests.hub_model import OTHERS, write_hub_model
from tests.hub_server import COMMIT, TOKEN, serving_hub

pytest.importorskip("huggingface_hub", reason="it sends")

CARD = "---\nlicense: {}\ntags:\n- keras\n---\n\n# A model\n\nlicense: of the text\n"
SENT = ["README.md", "config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_hub_model(tmp_path_factory.mktemp("push") / "model")
    (folder / "README.md").write_text(CARD.format("mit"))
    (folder / "diary.txt").write_text("stays at home")
    return folder


@pytest.fixture
def hub(tmp_path):
    with serving_hub({}, tmp_path / "hub") as hub:
        yield hub


def push(hub, model, *arguments, **environment):
    # hf_xet, where it is installed, has a protocol of its own, which the stand-in does not speak.
    settings = {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    home = {"HF_HOME": str(hub.home / "of_the_user")}
    return kbf("push", model, *arguments, environment=settings | home | environment)


def list_files(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_what_is_sent_is_what_is_fetched(hub, model, tmp_path):
    status, output, error = push(hub, model, "tiny/made", "--private", "--license", "apache-2.0")
    assert status == 0, error
    assert output.splitlines()[-1] == f"hf://tiny/made@{COMMIT}"
    there = hub.models["tiny/made"]
    assert list_files(there) == SENT and hub.private["tiny/made"] and len(hub.commits) == 1
    for name in SENT[1:]:
        assert (there / name).read_bytes() == (model / name).read_bytes(), name
    assert (there / "README.md").read_text() == CARD.format("apache-2.0")
    assert (model / "README.md").read_text() == CARD.format("mit")
    environment = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
    status, _, error = kbf("convert", "hf://tiny/made", tmp_path / "back", "--dtype=float16", environment=environment)
    assert status == 0, error


@pytest.mark.slow
def test_earlier_model_is_replaced_as_a_whole(hub, model):
    there = hub.models["tiny/made"] = hub.home / "tiny" / "made"
    there.mkdir(parents=True)
    earlier = ("model-00001-of-00002.safetensors", "model.safetensors.index.json", "config.json", "tokenizer.json")
    for name in (*earlier, "notes.txt", "pytorch_model.bin"):
        (there / name).write_text("earlier")
    status, output, error = push(hub, model, "hf://tiny/made@next", "--message=Second try")
    assert status == 0, error
    assert list_files(there) == sorted([*SENT, "notes.txt", "pytorch_model.bin"])
    assert hub.commits == [("tiny/made", "next", "Second try")] and ("tiny/made", "next") in hub.branches


def test_dry_run_needs_no_token_and_asks_nothing(hub, model):
    status, output, error = push(hub, model, "tiny/made", "--dry-run", HF_TOKEN="", HF_HUB_OFFLINE="1")
    assert status == 0 and not hub.asked, error
    assert output.splitlines()[-1] == "Nothing was sent to tiny/made@main."
    assert [line.partition(",")[0] for line in output.splitlines()[:-1]] == SENT
    assert not [name for name in (*OTHERS, "diary.txt") if name in output]


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["made"], {}, "must be pushed to org/name"),
        (["tiny/made/again"], {}, "must be hf://org/name"),
        (["tiny/made"], {"HF_TOKEN": ""}, "Received: none. Set HF_TOKEN"),
        (["tiny/made"], {"HF_HUB_OFFLINE": "1"}, "Unset it"),
        (["tiny/made", "--license=Apache 2.0"], {}, "such as apache-2.0. Received: 'Apache 2.0'"),
    ],
)
@pytest.mark.first_form
def test_what_cannot_be_sent_is_refused_before_the_hub_is_asked(hub, model, arguments, environment, words):
    assert_refused(push(hub, model, *arguments, **environment), words)
    assert not hub.asked


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("README.md", CARD.format("unknown"), "must be named by who publishes it"),
        ("model.safetensors", "cut", "model.safetensors"),
    ],
)
@pytest.mark.first_form
def test_model_that_is_not_whole_is_refused_before_the_hub_is_asked(hub, model, tmp_path, name, content, words):
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model" / name).write_text(content)
    assert_refused(push(hub, tmp_path / "model", "tiny/made"), words)
    assert not hub.asked


@pytest.mark.parametrize(
    "text", ["", "# A model\n\nlicense: mit\n", "---\ntags: []\n---\nlicense: mit\n", "---\nlicense: mit\n"]
)
def test_card_must_begin_with_its_license(tmp_path, text):
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(ValueError, match="must begin with front matter"):
        write_license(tmp_path / "README.md", "mit")


@pytest.mark.slow
def test_what_the_hub_refuses_is_one_line_and_no_commit(hub, model):
    assert_refused(push(hub, model, "tiny/made", HF_TOKEN="hf_another"), "must let the token write")
    assert_refused(push(hub, model, "tiny/made", HF_ENDPOINT="http://127.0.0.1:9"), "must be taken by the Hub")
    hub.loses_files = True
    assert_refused(push(hub, model, "tiny/made"), "must be taken by the Hub")
    assert not hub.commits and not list_files(hub.models["tiny/made"])


@pytest.mark.parametrize(
    "address", ["org/na me", "../x", "org/--a..b", "org/-x", "org/x.git", f"org/{'x' * 97}", "ö/x"]
)
def test_names_that_the_hub_refuses_are_refused_here(address):
    with pytest.raises(ValueError, match="A name on the Hub must begin and end with a letter"):
        check_push(address, is_sent=False)


@pytest.mark.parametrize(
    "name",
    [
        *("main", "a/b", "refs/pr/1", "v1.0", "ü", "a@b", "a-", "x.lock.y"),
        *("../x", "a b", "a..b", ".a", "a/.b", "a.lock", "a/", "/a", "a//b", "a.", "@", "a@{b", "-a", "a~1", "a^"),
        *("a:b", "a?", "a*", "a[b", "a\\b", "a\tb", "a\x7f"),
    ],
)
def test_names_of_branches_are_those_of_git(name):
    git = subprocess.run(["git", "check-ref-format", "--branch", name], capture_output=True, check=False)
    assert is_branch_name(name) == (git.returncode == 0)


def test_branch_that_git_refuses_is_refused_here():
    assert check_push("org/name@a/b", is_sent=False) == ("org/name", "a/b")
    with pytest.raises(ValueError, match="A branch must have a name that git allows. Received: '../x'"):
        check_push("org/name@../x", is_sent=False)
