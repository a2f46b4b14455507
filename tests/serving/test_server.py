"""`kbf serve-model` as its clients see it: a real server, right answers or clear refusals."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.serving.requests import Limits
from keras_bert_flow.serving.server import bind, check_place
from tests.commands import assert_refused
from tests.commands import kbf as run_kbf
from tests.oracles.numpy_bert import randomise_weights
from tests.oracles.small_bert import SMALL
from tests.oracles.tiny_model import PIECES
from tests.patience import PATIENCE_SECONDS, wait_until

RNG = np.random.default_rng(3)
TEXTS = [" ".join(RNG.choice(["a", "b", "c"], size)) for size in RNG.integers(1, 12, 200)]
TOKEN = "a-token-of-twenty-on"
AUTHORISED = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "model"
    backbone = kbf.BertBackbone(**SMALL | {"vocabulary_size": len(PIECES), "num_layers": 1})
    model = kbf.TextClassifier(backbone, labels=["no", "yes"])
    randomise_weights(model, 5)
    (folder.parent / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    task = kbf.make_task("classification", labels=["no", "yes"])
    model.save_to_preset(folder, vocabulary_path=folder.parent / "vocab.txt", task=task)
    return folder


class Server:
    """A running `kbf serve-model`, asked with its token."""

    def __init__(self, folder, *options, **environment):
        environment = {"KBF_SERVE_TOKEN": TOKEN} | environment
        command = [sys.executable, "-m", "keras_bert_flow", "serve-model", str(folder), "--port", "0", *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
        )
        watchdog = threading.Timer(PATIENCE_SECONDS, self.process.kill)
        watchdog.start()
        self.address = self.process.stdout.readline().strip()
        watchdog.cancel()
        assert self.address.startswith("http://127.0.0.1:"), self.process.communicate()[1][-2000:]
        # One client, since each reads the certificates of the system, but a connection per request
        self.client = httpx.Client(
            base_url=self.address, timeout=PATIENCE_SECONDS, limits=httpx.Limits(max_keepalive_connections=0)
        )

    def post(self, path, content, headers=AUTHORISED):
        return self.client.post(path, json=content, headers=headers)

    def send(self, path, body, **headers):
        headers = AUTHORISED | {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(path, content=body, headers=headers)

    def get(self, path, headers=AUTHORISED):
        return self.client.get(path, headers=headers)

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, said


@pytest.fixture(scope="module")
def server(folder):
    server = Server(folder)
    yield server
    status, said = server.end()
    assert (status, "Traceback" in said) == (0, False)


def test_200_requests_of_8_clients_have_the_answers_of_predict(server, folder):
    wanted = kbf.load(folder).predict(TEXTS)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: server.post("/predict", {"texts": [text]}), TEXTS))
    assert {response.status_code for response in found} == {200}
    for response, answer in zip(found, wanted, strict=True):
        [prediction] = response.json()["predictions"]
        assert prediction["label"] == answer["label"]
        # Float32 sums of another batch, whose rows are padded to another width.
        assert prediction["probabilities"]["yes"] == pytest.approx(answer["probabilities"]["yes"], abs=1e-5)
    assert len({round(answer["probability"], 4) for answer in wanted}) > 50  # the texts have answers of their own
    metrics = server.get("/metrics").text
    assert f'kbf_texts_total{{path="/predict"}} {len(TEXTS)}.0' in metrics


def test_embeddings_are_those_of_an_embedder(server, folder):
    wanted = kbf.Embedder(folder).embed(TEXTS[:5])
    found = server.post("/embed", {"texts": TEXTS[:5]}).json()
    np.testing.assert_allclose(found["embeddings"], wanted, atol=1e-5)
    many = server.post("/v1/embeddings", {"input": TEXTS[:5], "model": "any"}).json()
    assert many["object"] == "list" and [item["index"] for item in many["data"]] == list(range(5))
    np.testing.assert_allclose([item["embedding"] for item in many["data"]], wanted, atol=1e-5)
    assert many["usage"]["prompt_tokens"] == sum(len(text.split()) + 2 for text in TEXTS[:5])
    coded = server.post("/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64"}).json()
    vector = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(vector, wanted[0], atol=1e-5)
    short = server.post("/v1/embeddings", {"input": TEXTS[0], "dimensions": 4}).json()["data"][0]["embedding"]
    np.testing.assert_allclose(short, wanted[0, :4] / np.linalg.norm(wanted[0, :4]), atol=1e-4)
    assert server.get("/v1/models").json()["data"][0]["id"] == many["model"]


@pytest.mark.parametrize(
    ("path", "content", "status", "line"),
    [
        ("/predict", b"{", 422, "JSON decode error"),
        ("/predict", b"\xff\xfe", 422, "must be JSON"),
        ("/predict", b"", 422, "must be JSON"),
        (
            "/predict",
            b'{"texts": ["\xff"]}',
            422,
            'must be JSON like {"texts": ["a text"]}. Received: bytes that are not',
        ),
        ("/predict", b'{"texts": ' + b"[" * 100_000, 422, "must be JSON like"),
        ("/predict", b'{"texts": [' + b"1" * 5000 + b"]}", 422, "too long a number. Correct the body."),
        (
            "/predict",
            b'{"texts": ["a", "\\ud800"]}',
            422,
            "Item 2: a text must be Unicode. Received: '\\ud800', half of",
        ),
        ("/embed", b'{"texts": [{"text": "\\udfff"}]}', 422, "Item 1: a text must be Unicode. Received: '\\udfff'"),
        ("/v1/embeddings", b'{"input": ["a\\ud800"]}', 422, "must be"),
        ("/v1/embeddings", b'{"input": "a", "dimensions": true}', 422, "dimensions: Input should be a valid integer"),
        ("/predict", b"[]", 422, "must be JSON"),
        ("/predict", b"{}", 422, "texts: Field required"),
        ("/predict", b'{"texts": "a"}', 422, "texts: Input should be a valid list"),
        ("/predict", b'{"texts": []}', 422, "at least 1 item"),
        ("/predict", b'{"texts": [3]}', 422, "Item 1: An item for this task"),
        ("/predict", b'{"texts": ["a", ["a", "b"]]}', 422, "Item 2: An item for this task"),
        ("/predict", b'{"texts": ["a"], "more": 1}', 422, "more: Extra inputs are not permitted"),
        ("/predict", json.dumps({"texts": ["a"] * 257}).encode(), 413, "at most 256 texts. Received: 257"),
        ("/predict", b'{"texts": ["' + b"a" * (1 << 20) + b'"]}', 413, "at most 1,048,576 bytes"),
        ("/v1/embeddings", b'{"input": []}', 422, "Received: an empty list"),
        ("/v1/embeddings", b'{"input": "a", "dimensions": 1000}', 422, "at most the model's 24"),
        ("/v1/embeddings", b'{"input": "a", "encoding_format": "int8"}', 422, "encoding_format"),
        ("/nothing", b"{}", 404, "There is no /nothing here. Ask /embed, /predict, /health, /metrics."),
    ],
)
def test_what_is_no_request_is_refused_in_one_line(server, path, content, status, line):
    found = server.send(path, content, content_type="application/json")
    error = found.json()["error"]
    assert (found.status_code, error["code"]) == (status, status)
    assert line in error["message"] and "\n" not in error["message"]


def test_form_without_its_content_type_says_so(server):
    found = server.send("/predict", b'{"texts": ["a"]}')
    assert found.status_code in (200, 422)
    if found.status_code == 422:
        assert "application/json" in found.json()["error"]["message"]


def test_every_text_has_an_answer(server):
    texts = ["", " ", "\u0000", "\ud83d\ude00", "a " * 5000, "\u202e\u0301", "[CLS] [MASK]"]
    found = server.send("/predict", json.dumps({"texts": texts}), content_type="application/json")
    assert found.status_code == 200 and len(found.json()["predictions"]) == len(texts)


def test_health_needs_no_token_and_all_else_does(server):
    assert server.get("/health", headers={}).status_code == 200
    before = server.get("/metrics").text
    for headers in ({}, {"authorization": "Bearer wrong-token-of-twenty"}, {"authorization": TOKEN}):
        found = server.post("/embed", {"texts": ["a"]}, headers=headers)
        assert found.status_code == 401 and "Authorization: Bearer TOKEN" in found.json()["error"]["message"]
    assert server.get("/metrics", headers={}).status_code == 401
    assert server.get("/any/other/path", headers={}).status_code == 401
    counted = server.get("/metrics").text
    for line in ('path="/embed",status="401"} 3.0', 'path="other",status="401"} 1.0'):
        assert f"kbf_requests_total{{{line}" in counted and line not in before


@pytest.mark.slow
def test_only_what_is_asked_for_is_served(folder):
    server = Server(folder, "--only", "embed")
    assert server.get("/health").json()["paths"] == ["/embed"]
    assert server.post("/embed", {"texts": ["a"]}).status_code == 200
    assert server.post("/predict", {}).status_code == 404
    status, said = server.end(signal.SIGINT)
    assert status == 0 and "stopped; the requests that had arrived are answered" in said


@pytest.mark.slow
def test_overloaded_it_refuses_and_killed_it_never_lies(folder):
    server = Server(folder, "--only", "predict", "--max-waiting", "64", "--max-texts", "64")
    wanted = {text: answer["label"] for text, answer in zip(TEXTS, kbf.load(folder).predict(TEXTS), strict=True)}
    some = TEXTS[:64]

    def ask(_):
        try:
            found = server.post("/predict", {"texts": some})
        except httpx.HTTPError as error:
            return type(error)
        if found.status_code == 200:
            assert [answer["label"] for answer in found.json()["predictions"]] == [wanted[text] for text in some]
        else:
            assert found.json()["error"]["message"] == "At most 64 texts may wait. Ask again in a moment."
            assert found.headers["retry-after"]
        return found.status_code

    with ThreadPoolExecutor(24) as pool:
        found = set(pool.map(ask, range(120)))
    assert found == {200, 503}
    with ThreadPoolExecutor(24) as pool:
        asked = [pool.submit(ask, number) for number in range(240)]
        wait_until(lambda: sum(future.done() for future in asked) >= 12)
        server.process.kill()
        found = {future.result(PATIENCE_SECONDS) for future in asked}
    server.process.communicate(timeout=PATIENCE_SECONDS)
    assert any(isinstance(each, type) for each in found)


@pytest.mark.slow
def test_terminated_it_answers_what_has_arrived(folder):
    server = Server(folder, "--only", "predict", "--max-waiting", "100000")
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(server.post, "/predict", {"texts": TEXTS}) for _ in range(16)]
        wait_until(lambda: any(future.done() for future in asked))
        status, said = server.end()
        refused = [future for future in asked if future.exception(PATIENCE_SECONDS)]
        assert all(isinstance(future.exception(), httpx.ConnectError) for future in refused)
        found = [future.result().status_code for future in asked if future not in refused]
    assert status == 0 and "Traceback" not in said
    assert set(found) <= {200, 503} and 200 in found


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--host", "0.0.0.0"], "A server that others can reach must have a token. Received: --host 0.0.0.0"),
        (["--only", "all"], "--only must be predict or embed. Received: all"),
        (["--host", "203.0.113.7", "--port", "80"], "A server that others can reach"),
    ],
)
def test_what_cannot_be_served_is_told_in_one_line(folder, options, line):
    assert_refused(run_kbf("serve-model", folder, *options), line)


def test_a_port_in_use_is_told_before_the_model_is_loaded(server, folder):
    port = server.address.rpartition(":")[2]
    status, _, said = run_kbf("serve-model", folder, "--port", port)
    assert status == 2 and "Address already in use" in said and "Loading" not in said


def test_answers_wait_for_no_acknowledgement():
    with bind("127.0.0.1", 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP


def test_tokens_are_long_and_printable():
    for token in ("short", "a" * 15, "a" * 15 + "\n", "ä" * 20):
        with pytest.raises(ValueError, match="at least 16 printable ASCII"):
            check_place("127.0.0.1", token)
    for host in ("localhost", "127.0.0.2", "::1"):
        check_place(host, None)
    check_place("0.0.0.0", "a" * 16)
    assert Limits().body_bytes == 1 << 20


@pytest.mark.slow
def test_an_exported_model_has_the_answers_of_its_model(folder, tmp_path):
    pytest.importorskip("onnxruntime")
    export = [sys.executable, "-m", "keras_bert_flow", "export", "--format", "onnx", "--backend", "torch"]
    for as_, path in (("task", "/predict"), ("sentence_embedding", "/embed")):
        output = tmp_path / as_
        subprocess.run([*export, "--as", as_, str(folder), str(output)], check=True, timeout=PATIENCE_SECONDS)
        server = Server(output, "--threads", "1")
        check_answers(server, path, folder)
        assert server.end()[0] == 0
    server = Server(folder, "--onnx")  # both of these, exported by the server itself
    for path in ("/predict", "/embed"):
        check_answers(server, path, folder)
    assert server.end()[0] == 0


def check_answers(server, path, folder):
    found = server.post(path, {"texts": TEXTS[:20]}).json()
    if path == "/predict":
        wanted = [answer["probabilities"]["yes"] for answer in kbf.load(folder).predict(TEXTS[:20])]
        received = [answer["probabilities"]["yes"] for answer in found["predictions"]]
    else:
        wanted, received = kbf.Embedder(folder).embed(TEXTS[:20]), found["embeddings"]
    np.testing.assert_allclose(received, wanted, atol=1e-5)
