"""Requests recorded with Triton 2.51.0, sent to berth in the same order; the answers must be the
same in status, and in body as JSON. What differs is listed with its reason, and must really differ."""

import base64
import gzip
import json

import pytest

from conftest import DATA, IDENTITY, Berth, add_model

CASES = json.loads((DATA / "triton" / "http_cases.json").read_text())

# name: why berth answers otherwise (docs/triton.md has the same list in words)
NOT_YET = "extension not served yet; it says 404 or a typed error instead"
DIFFERENT = {
    "server_metadata": "names itself berth, and lists the extensions it has",
    "model_config_ocr": "the engine is another one, so backend and file name differ",
    "model_metadata": "platform names the engine, which is another one",
    "v1": "berth serves OpenAI's /v1/models here",
    "metrics_on_http_port": "berth serves /metrics on its one port",
    "logging_get": NOT_YET, "logging_post": NOT_YET, "logging_post_bad": NOT_YET,
    "trace_get": NOT_YET, "model_trace_get": NOT_YET, "trace_post": NOT_YET, "trace_post_bad": NOT_YET,
    "sysshm_status": NOT_YET, "cudashm_status": NOT_YET, "sysshm_region_unknown": NOT_YET,
    "sysshm_register_missing": NOT_YET, "sysshm_unregister_all": NOT_YET,
    "generate": NOT_YET, "generate_stream": NOT_YET, "infer_classification": NOT_YET,
    "err_bad_json": "the JSON library's own words for the mistake; the status is the same",
    "err_bad_json2": "the JSON library's own words for the mistake; the status is the same",
    "repo_index_badjson": "the JSON library's own words for the mistake; the status is the same",
    "err_binary_no_header_len": "the JSON is followed by bytes: berth calls that malformed JSON",
    "live_head": "an answer to HEAD has no body",
    "repo_load_override_badjson": "the reason stands behind Triton's text",
    "repo_load_override": "the override names the python backend, which is not here",
    "err_content_encoding": "a body that is not gzip is refused (400); Triton answers an empty tensor with 200",
    "err_content_encoding_unknown": "415 is what HTTP has for it",
    "err_wrong_rank": "the note on max_batch_size is shorter",
    "err_wrong_rank3": "the note on max_batch_size is shorter",
    "err_wrong_dim_ocr": "the note on max_batch_size is shorter",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton")
    add_model(folder, "identity", IDENTITY.replace("[{", "[ {") + "instance_group [{ kind: KIND_CPU count: 1 }]\n")
    add_model(folder, "ocr_rec", """backend: "null"
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [3, 48, 320] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [40, 6625] }]
dynamic_batching {}
""")
    server = Berth(folder, "--model-control-mode", "explicit",
                   "--load-model", "identity", "--load-model", "ocr_rec")
    for name in ("identity", "ocr_rec"):
        server.wait_metric("berth_model_warm", 1, f'model="{name}"')
    yield server
    server.stop()


def parse(raw):
    """(status, headers, body), chunks joined, gzip opened."""
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if headers.get("transfer-encoding") == "chunked":
        joined = b""
        while body:
            size, _, rest = body.partition(b"\r\n")
            count = int(size or b"0", 16)
            if count == 0:
                break
            joined, body = joined + rest[:count], rest[count + 2:]
        body = joined
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    return int(lines[0].split(" ")[1]), headers, body


def content(headers, body):
    """The body as comparable things: JSON and the bytes after it."""
    length = headers.get("inference-header-content-length")
    cut = int(length) if length else len(body)
    try:
        return json.loads(body[:cut]), body[cut:]
    except ValueError:
        return body.decode("latin-1"), b""


def without_figures(value):
    """Statistics: the shape matters, not the counts of another run."""
    if isinstance(value, dict):
        return {key: without_figures(item) for key, item in value.items() if key != "memory_usage"}
    if isinstance(value, list):
        return [without_figures(item) for item in value if not isinstance(item, dict) or "batch_size" not in item]
    return 0 if isinstance(value, int) else value


def ask(server, case):
    request = base64.b64decode(case["request"])
    head, blank, body = request.partition(b"\r\n\r\n")
    if b"\r\nconnection:" not in head.lower():
        head += b"\r\nConnection: close"
    return server.raw(head + blank + body)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_same_as_triton(server, case):
    name = case["name"]
    status, headers, body = parse(base64.b64decode(case["response"]))
    got_status, got_headers, got_body = parse(ask(server, case))
    want = content(headers, body)
    got = content(got_headers, got_body)
    if "stats" in name:
        want, got = without_figures(want[0]), without_figures(got[0])
    same = status == got_status and want == got
    if name in DIFFERENT:
        if name == "repo_load_override_badjson":
            assert got_status == status and got[0]["error"].startswith(want[0]["error"] + ": "), got
        assert not same, f"{name} does not differ any more: take it off the list"
        assert got_status != 200 or name in ("server_metadata", "model_config_ocr", "model_metadata", "v1", "metrics_on_http_port"), got_body
        return
    assert got_status == status, got_body
    assert got == want
