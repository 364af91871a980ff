"""A model that no node has loaded, on the disk of one of two real nodes."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

import httpx
import pytest

from bench.nodes import start_node
from tests.support.api import TIMEOUT, body, until

pytestmark = [pytest.mark.e2e, pytest.mark.engine]


def test_a_model_is_loaded_when_it_is_asked_for_and_where_it_is(tmp_path: Path, smollm2_path: Path):
    shutil.copytree(smollm2_path, tmp_path / "owner" / "Tiny-1B-Instruct")
    (tmp_path / "none").mkdir()
    cluster = ("--cluster", f"test-{secrets.token_hex(3)}", "--role", "decode")
    one = ("--model", str(smollm2_path), "--models-dir", str(tmp_path))
    other = ("--model", str(smollm2_path), "--models-dir", str(tmp_path / "none"))
    with start_node("one", *cluster, *one) as has, start_node("other", *cluster, *other) as asked:

        def listed() -> dict[str, bool]:
            models = asked.document("/v1/models").get("data")
            assert models is None or isinstance(models, list)
            return {each["id"]: each["x_baton"]["loaded"] for each in models or []}

        until(lambda: listed().get("owner/Tiny-1B-Instruct") is False)
        document = body("Say hello.", max_tokens=4) | {"model": "else/tiny_1b-instruct-4bit"}
        url = f"http://{asked.api}/v1/chat/completions"
        response = httpx.post(url, json=document, timeout=TIMEOUT)
        assert response.status_code == 200, response.text
        assert response.json()["usage"]["completion_tokens"] == 4
        assert listed()["owner/Tiny-1B-Instruct"]
        (instance,) = (
            each
            for each in httpx.get(f"http://{asked.api}/v1/instances").json()["data"]
            if each["model"] == "owner/Tiny-1B-Instruct"
        )
        assert instance["node"] == has.document("/v1/cluster")["self"]

        gone = httpx.delete(f"http://{asked.api}/v1/instances/{instance['id']}", timeout=TIMEOUT)
        assert gone.status_code == 200, gone.text
        until(lambda: not listed()["owner/Tiny-1B-Instruct"])
