"""The zoo: complete, certified to the numbers on its cards, and refused where a file has changed."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import smoothcert as sc
from smoothcert.models.zoo import CARD, INDEX, MODEL, VARIABLE, Zoo
from smoothcert.report.recompute import outcomes_of
from smoothcert.types import CheckpointError, UsageError

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "zoo"
pytestmark = pytest.mark.skipif(not ZOO.is_dir(), reason="the source archive has no zoo")
NAMES = Zoo(ZOO).names()
LENET = "mnist-lenet-gaussian-0.50"


@pytest.fixture
def mirror(tmp_path):
    Zoo(ZOO).copy(LENET, tmp_path / "mirror")
    return tmp_path / "mirror"


@pytest.fixture
def server(mirror, tmp_path, monkeypatch):
    """An https server of the mirror, and the paths that were requested."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1"
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run([*command.split(), *more], check=True, capture_output=True)
    requested = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            requested.append(self.path)
            super().do_GET()

        def log_message(self, *arguments):
            pass

    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=mirror))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    found.socket = context.wrap_socket(found.socket, server_side=True)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    yield f"https://127.0.0.1:{found.server_port}", requested
    found.shutdown()
    thread.join()
    found.server_close()


def change(file):
    """Change the last byte of a file."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


class TestOurs:
    def test_the_index_lists_every_file(self):
        files = {file for file in ZOO.rglob("*") if file.is_file()} - {ZOO / INDEX}
        assert files == {Zoo(ZOO).file(name, file) for name in NAMES for file in Zoo(ZOO).index.models[name]}
        assert sum(file.stat().st_size for file in files) < 60_000_000
        assert all(file.stat().st_size <= 2_000_000 for file in files)

    @pytest.mark.parametrize("name", NAMES)
    def test_a_card_says_what_the_model_and_the_run_do(self, name, monkeypatch):
        monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
        from zoo import card

        assert json.loads((ZOO / name / CARD).read_text()) == json.loads(json.dumps(card(ZOO / name)))
        sys.modules.pop("zoo")

    @pytest.mark.parametrize("name", NAMES)
    def test_a_model_certifies_to_the_number_on_its_card(self, name, tmp_path):
        stored, n = sc.load_run(ZOO / name), 100
        found = stored.config["data"]["name"]
        if not sc.data.available(found):
            pytest.skip(f"{found} is not here")
        smoothed = sc.Smoothed(sc.load_model(f"zoo:{name}"), stored.settings.build_noise())
        every, seed = stored.config["inputs"]["every"], stored.config["seed"]
        test = sc.data.load(found, split="test")
        again = sc.certify_dataset(
            smoothed, test, sc.Cohen(n), run=tmp_path / "run", every=every, stop=3 * every, seed=seed
        )
        whole, few = outcomes_of(stored, n=n), outcomes_of(again)
        assert few.index.tolist() == [0, every, 2 * every]
        assert few.predict.tolist() == whole.predict[:3].tolist()
        assert few.label.tolist() == whole.label[:3].tolist()
        # The samples are the same, but a runtime may round logits in another way, which changes very few votes.
        for old, new in zip(stored.rows(), again.rows(), strict=False):
            assert np.abs(np.subtract(old["checkpoints"][n], new["counts"])).sum() <= 2


class TestPlaces:
    def test_a_checkout_is_the_default(self, monkeypatch):
        monkeypatch.delenv(VARIABLE, raising=False)
        assert Zoo().place == str(ZOO)
        monkeypatch.setattr("smoothcert.models.zoo._CHECKOUT", ROOT / "missing")
        with pytest.raises(UsageError, match=r"name the zoo's folder or address with --zoo or in \$SMOOTHCERT_ZOO"):
            Zoo()

    def test_a_mirror(self, mirror, monkeypatch):
        monkeypatch.setenv(VARIABLE, str(mirror))
        assert Zoo().names() == [LENET]
        ours = sc.load_model(ZOO / LENET).state_dict()
        assert all(torch.equal(value, ours[name]) for name, value in sc.load_model(f"zoo:{LENET}").state_dict().items())
        with pytest.raises(UsageError, match="unknown model of the zoo 'lenet'"):
            sc.load_model("zoo:lenet")

    def test_a_copy_adds_to_a_zoo(self, mirror):
        other = next(name for name in NAMES if name != LENET)
        assert Zoo(ZOO).copy(other, mirror) == mirror / other
        assert Zoo(mirror).names() == sorted([LENET, other])
        assert (mirror / other / "run.json").read_bytes() == (ZOO / other / "run.json").read_bytes()

    def test_an_address_is_downloaded_once(self, server, tmp_path):
        address, requested = server
        for _ in range(2):
            zoo = Zoo(address + "/", cache=tmp_path / "cache")
            assert zoo.get(LENET).read_bytes() == (ZOO / LENET / MODEL).read_bytes()
        assert requested.count(f"/{LENET}/{MODEL}") == 1
        change(zoo.get(LENET))  # a damaged cache is repaired
        assert zoo.get(LENET).read_bytes() == (ZOO / LENET / MODEL).read_bytes()

    def test_a_changed_download_is_refused(self, server, mirror, tmp_path):
        change(mirror / LENET / MODEL)
        zoo = Zoo(server[0], cache=tmp_path / "cache")
        with pytest.raises(CheckpointError, match="is not the file in the index of the zoo"):
            zoo.get(LENET)
        assert not [*(tmp_path / "cache").rglob(MODEL)]

    def test_an_endless_download_is_cut(self, server, mirror, tmp_path, monkeypatch):
        with (mirror / LENET / MODEL).open("ab") as file:
            file.write(bytes(50_000_000))
        received = []
        monkeypatch.setattr("smoothcert.models.zoo.ZooFile.of", lambda content: received.append(len(content)))
        with pytest.raises(CheckpointError, match="is not the file"):
            Zoo(server[0], cache=tmp_path / "cache").file(LENET)
        assert max(received) < 2_000_000

    def test_missing_files_and_servers(self, server, mirror, tmp_path):
        (mirror / LENET / MODEL).unlink()
        with pytest.raises(CheckpointError, match="cannot be read: status 404"):
            Zoo(server[0], cache=tmp_path / "cache").file(LENET)
        with pytest.raises(CheckpointError, match=r"cannot be read \(No such file or directory\)"):
            Zoo(mirror).file(LENET)
        with pytest.raises(CheckpointError, match=r"cannot be read \(ConnectionError\); check the place of the zoo"):
            Zoo("https://127.0.0.1:9", cache=tmp_path).names()

    @pytest.mark.parametrize("address", ["http://example.org/zoo", "file:///etc", "ftp://example.org"])
    def test_other_protocols(self, address):
        with pytest.raises(UsageError, match="begins with https://"):
            Zoo(address)


class TestRefused:
    @pytest.mark.parametrize("file", [MODEL, CARD])
    def test_a_changed_file(self, file, mirror, monkeypatch):
        change(mirror / LENET / file)
        monkeypatch.setenv(VARIABLE, str(mirror))
        with pytest.raises(CheckpointError, match=f"{LENET}/{file} is not the file in the index"):
            Zoo().get(LENET)
        if file == MODEL:
            with pytest.raises(CheckpointError, match="is not the file in the index"):
                sc.load_model(f"zoo:{LENET}")

    @pytest.mark.parametrize(
        ("models", "message"),
        [
            ({"../other": {}}, "'../other' is not a plain name"),
            ({"a": {"../../x": {"size": 1, "sha256": "0" * 64}}}, "'..' is not a plain name"),
            ({"a": {"/etc/passwd": {"size": 1, "sha256": "0" * 64}}}, "'' is not a plain name"),
            ({"a": {}}, "a has no card.json"),
            ({"a": {MODEL: {"size": 1 << 40, "sha256": "0" * 64}}}, "less than or equal"),
            ({"a": {MODEL: {"size": 1, "sha256": "0"}}}, "should match pattern"),
            ([], "valid dictionary"),
        ],
    )
    def test_an_index(self, models, message, tmp_path):
        (tmp_path / INDEX).write_text(json.dumps({"format": 1, "models": models}))
        with pytest.raises(CheckpointError, match="is not the index of a zoo") as caught:
            Zoo(tmp_path).names()
        assert message in str(caught.value)

    @pytest.mark.parametrize("content", ["", "{", "[" * 100_000, '{"format": 2, "models": {}}'])
    def test_another_file_as_index(self, content, tmp_path):
        (tmp_path / INDEX).write_text(content)
        with pytest.raises(CheckpointError, match="is not the index of a zoo"):
            Zoo(tmp_path).names()
