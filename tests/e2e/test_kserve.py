"""KServe v2 over HTTP with tritonclient, and by hand where the client would not send such things."""

import json

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from conftest import IDENTITY, add_model

TYPES = {
    "BOOL": np.array([True, False, True]), "UINT8": np.array([0, 255], np.uint8),
    "UINT16": np.array([0, 65535], np.uint16), "UINT32": np.array([0, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 2**63 - 1], np.uint64), "INT8": np.array([-128, 127], np.int8),
    "INT16": np.array([-32768, 32767], np.int16), "INT32": np.array([-2**31, 2**31 - 1], np.int32),
    "INT64": np.array([-2**63, 2**63 - 1], np.int64), "FP16": np.array([0.5, -2], np.float16),
    "FP32": np.array([0.1, -1e30, np.inf], np.float32), "FP64": np.array([1e300, 0.1], np.float64),
    "BYTES": np.array([b"", b"ab", "žluť".encode()], object),
}


@pytest.fixture(scope="module")
def client(null_server):
    with triton.InferenceServerClient(null_server.address) as client:
        yield client


def tensor(values, binary=True, name="INPUT0", dtype="FP32"):
    value = triton.InferInput(name, list(values.shape), dtype)
    value.set_data_from_numpy(values, binary_data=binary)
    return value


def test_health_and_metadata(client):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("identity")
    assert not client.is_model_ready("nope")
    assert client.get_server_metadata()["name"] == "berth"
    metadata = client.get_model_metadata("identity")
    assert metadata["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, -1]}]
    assert client.get_model_config("identity")["max_batch_size"] == 32
    assert {m["name"] for m in client.get_model_repository_index()} >= {"identity", "ocr_rec"}


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_identity(client, binary_in, binary_out):
    values = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
    result = client.infer("identity", [tensor(values, binary_in)], request_id="abc",
                          outputs=[triton.InferRequestedOutput("OUTPUT0", binary_data=binary_out)])
    assert np.array_equal(result.as_numpy("OUTPUT0"), values)
    assert result.get_response()["id"] == "abc"


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_in_binary(client, dtype):
    name = "string" if dtype == "BYTES" else dtype.lower()
    result = client.infer(f"echo_{name}", [tensor(TYPES[dtype], name="IN", dtype=dtype)])
    assert np.array_equal(result.as_numpy("OUT"), TYPES[dtype])


@pytest.mark.parametrize("dtype", [t for t in TYPES if t != "FP16"])
def test_every_type_in_json(client, dtype):
    values = TYPES[dtype][:2]
    name = "string" if dtype == "BYTES" else dtype.lower()
    result = client.infer(f"echo_{name}", [tensor(values, False, "IN", dtype)],
                          outputs=[triton.InferRequestedOutput("OUT", binary_data=False)])
    got = result.as_numpy("OUT").tolist()
    assert [v.encode() if isinstance(v, str) else v for v in got] == values.tolist()


def test_three_megabytes(client):
    values = np.random.default_rng(1).random((1, 786432), np.float32)
    assert np.array_equal(client.infer("identity", [tensor(values)]).as_numpy("OUTPUT0"), values)


def test_many_at_once_each_gets_its_own(null_server):
    with triton.InferenceServerClient(null_server.address, concurrency=16) as client:
        inputs = [np.full((1, 5 + i % 3), i, np.float32) for i in range(300)]
        pending = [client.async_infer("identity", [tensor(values)]) for values in inputs]
        for values, request in zip(inputs, pending):
            assert np.array_equal(request.get_result().as_numpy("OUTPUT0"), values)


def test_statistics_count_what_ran(null_models, serve):
    server = serve(null_models)
    with triton.InferenceServerClient(server.address) as client:
        for _ in range(3):
            client.infer("identity", [tensor(np.ones((2, 2), np.float32))])
        with pytest.raises(InferenceServerException):
            client.infer("identity", [tensor(np.ones((33, 2), np.float32))])
        stats = client.get_inference_statistics("identity")["model_stats"][0]
    assert (stats["inference_count"], stats["execution_count"]) == (6, 3)
    assert stats["inference_stats"]["success"]["count"] == 3
    assert stats["inference_stats"]["fail"]["count"] == 0
    assert [(b["batch_size"], b["compute_infer"]["count"]) for b in stats["batch_stats"]] == [(2, 3)]


def test_load_unload_override(null_models, serve):
    server = serve(null_models, "--model-control-mode", "explicit")
    values = tensor(np.ones((20, 1), np.float32))
    with triton.InferenceServerClient(server.address) as client:
        with pytest.raises(InferenceServerException, match="no available versions"):
            client.infer("identity", [values])
        client.load_model("identity")
        assert client.is_model_ready("identity")
        client.infer("identity", [values])
        config = {"backend": "null", "max_batch_size": 16,
                  "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
                  "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}]}
        client.load_model("identity", config=json.dumps(config))
        assert client.get_model_config("identity")["max_batch_size"] == 16
        with pytest.raises(InferenceServerException, match="batch-size must be <= 16"):
            client.infer("identity", [values])
        client.load_model("identity")
        client.infer("identity", [values])
        client.unload_model("identity")
        assert not client.is_model_ready("identity")
        with pytest.raises(InferenceServerException, match="failed to load 'nope'"):
            client.load_model("nope")
    assert server.get("/v2/health/ready")[0] == 200


BAD = [
    ("empty object", b"{}", 500, "inputs"),
    ("not JSON", b"{\"inputs\": [", 500, "JSON"),
    ("not UTF-8", b"{\"id\": \"\xff\xfe\", \"inputs\": []}", 500, "JSON"),
    ("deep", b"[" * 100000, 500, "JSON"),
    ("data of another length",
     b'{"inputs":[{"name":"INPUT0","shape":[1,4],"datatype":"FP32","data":[1,2]}]}', 500, "data"),
    ("wrong type", b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"INT32","data":[1]}]}', 400,
     "INT32"),
    ("wrong rank", b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"FP32","data":[1]}]}', 400, "shape"),
    ("huge shape",
     b'{"inputs":[{"name":"INPUT0","shape":[1,9223372036854775807],"datatype":"FP32","data":[1]}]}', 500,
     "data"),
    ("overflowing shape", b'{"inputs":[{"name":"INPUT0","shape":[4294967296,4294967296,4294967296],'
     b'"datatype":"FP32","parameters":{"binary_data_size":0}}]}', 400, "shape"),
    ("nine dims", b'{"inputs":[{"name":"INPUT0","shape":[1,1,1,1,1,1,1,1,1],"datatype":"FP32","data":[1]}]}',
     400, "dimensions"),
    ("unknown output", b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}],'
     b'"outputs":[{"name":"X"}]}', 400, "X"),
    ("negative binary size", b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32",'
     b'"parameters":{"binary_data_size":-4}}]}', 500, "binary_data_size"),
    ("NUL in a name", b'{"inputs":[{"name":"INPUT0\\u0000","shape":[1,1],"datatype":"FP32","data":[1]}]}', 500, "NUL"),
    ("NUL in the id", b'{"id":"a\\u0000b","inputs":[]}', 500, "'id': a NUL"),
    ("NUL in a datatype",
     b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32\\u0000","data":[1]}]}', 500, "'datatype': a NUL"),
    ("NUL in a parameter's name", b'{"parameters":{"a\\u0000":1},"inputs":[]}', 500, "'parameters': a NUL"),
    ("NUL in a reserved name", b'{"parameters":{"\\u0000triton_x":1},"inputs":[]}', 500, "'parameters': a NUL"),
    ("NUL in a parameter", b'{"parameters":{"a":"b\\u0000"},"inputs":[]}', 500, "'parameters': a NUL"),
    ("NUL in a region", b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32",'
     b'"parameters":{"shared_memory_region":"a\\u0000"}}]}', 500, "'shared_memory_region': a NUL"),
    ("NUL in an output's name", b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}],'
     b'"outputs":[{"name":"OUTPUT0\\u0000"}]}', 500, "'name': a NUL"),
    ("NUL in a key", b'{"inputs":[],"inputs\\u0000":[{"name":"INPUT0"}]}', 400, "INPUT0"),
    ("too many parameters", b'{"inputs":[],"parameters":{' + b",".join(b'"p%d":1' % i for i in range(257)) + b"}}", 400,
     "more than 256 parameters"),
    ("batch 0", b'{"inputs":[{"name":"INPUT0","shape":[0,1],"datatype":"FP32","data":[]}]}', 400, "batch-size"),
]


@pytest.mark.parametrize("name, body, status, says", BAD, ids=[case[0] for case in BAD])
def test_bad_requests_are_typed_and_harmless(null_server, name, body, status, says):
    got, headers, text = null_server.call("POST", "/v2/models/identity/infer", body)
    assert got == status, text
    assert says in json.loads(text)["error"]
    assert null_server.get("/v2/health/ready")[0] == 200


def test_nul_in_a_repository_request(null_server):
    for body, field in ((rb'{"parameters":{"config":"a\u0000"}}', "parameters.config"),
                        (rb'{"parameters":{"config\u0000":"{}"}}', r"parameters.config\u0000")):
        status, _, text = null_server.call("POST", "/v2/repository/models/identity/load", body)
        assert status == 500 and f"a NUL in the text of '{field}'" in json.loads(text)["error"]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_what_json_cannot_tell_is_refused(null_server, dtype):
    head = {"inputs": [{"name": "IN", "shape": [2], "datatype": dtype.upper(),
                        "parameters": {"binary_data_size": 4}}]}
    text = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    status, _, body = null_server.call("POST", f"/v2/models/echo_{dtype}/infer", text + bytes(4), headers)
    assert status == 400 and "binary data format" in json.loads(body)["error"]


def test_versions_count_from_one(null_server):
    body = b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}'
    assert null_server.call("POST", "/v2/models/identity/versions/1/infer", body)[0] == 200
    status, _, text = null_server.call("POST", "/v2/models/identity/versions/0/infer", body)
    assert status == 404 and "version 0 is not found" in json.loads(text)["error"]


def test_answers_in_json_are_bounded(null_models, serve):
    server = serve(null_models, "--json-bytes-max", "1K")
    for count, expect in ((100, 200), (400, 413)):
        head = {"inputs": [{"name": "INPUT0", "shape": [1, count], "datatype": "FP32",
                            "parameters": {"binary_data_size": 4 * count}}]}
        for binary, status in ((False, expect), (True, 200)):
            text = json.dumps(head | {"parameters": {"binary_data_output": binary}}).encode()
            headers = {"Inference-Header-Content-Length": str(len(text))}
            got, _, body = server.call("POST", "/v2/models/identity/infer", text + bytes(4 * count), headers)
            assert got == status, body[:200]


def test_other_json_is_bounded_before_it_is_read(null_models, serve):
    server = serve(null_models, "--json-bytes-max", "1K")
    assert server.call("POST", "/v2/repository/index", b" " * 1025)[0] == 413
    assert server.call("POST", "/v2/repository/index", b"{}" + b" " * 1022)[0] == 200


def test_405_in_the_form_of_its_api(null_server):
    status, _, body = null_server.call("POST", "/v1/models", b"")
    assert status == 405 and json.loads(body)["error"]["message"] == "Method Not Allowed"
    status, _, body = null_server.call("POST", "/v2", b"")
    assert status == 405 and json.loads(body)["error"] == "Method Not Allowed"


def test_typed_errors(null_models, serve):
    server = serve(null_models, "--errors", "typed")
    assert server.call("POST", "/v2/models/identity/infer", b"{}")[0] == 400
    assert server.get("/v2/models/nope/ready")[0] == 503


def test_broken_models_leave_the_rest_alone(tmp_path, serve):
    add_model(tmp_path, "good", IDENTITY)
    add_model(tmp_path, "mistake", 'backend: "null"\nmax_batch_size: 8\ninput [{ name: \n')
    add_model(tmp_path, "corrupt", 'backend: "onnxruntime"\n', files=[("model.onnx", b"\x08\x07garbage" * 99)])
    server = serve(tmp_path)
    with triton.InferenceServerClient(server.address) as client:
        client.infer("good", [tensor(np.ones((1, 2), np.float32))])
        index = {m["name"]: m for m in client.get_model_repository_index()}
        assert index["mistake"]["state"] == "UNAVAILABLE"
        assert "config.pbtxt:4" in index["mistake"]["reason"] or ":3" in index["mistake"]["reason"]
        with pytest.raises(InferenceServerException) as error:
            client.infer("corrupt", [tensor(np.ones((1, 2), np.float32))])
        assert "model.onnx" in error.value.message()
        client.infer("good", [tensor(np.ones((1, 2), np.float32))])
