"""The commands a person types."""

import json
import os
import pathlib
import socket
import subprocess
import tempfile
import urllib.request

import pytest

from conftest import BERTH, DATA, IDENTITY, PATIENCE_S, wait_until, word_errors, words_of


def berth(*arguments, check=True):
    result = subprocess.run([BERTH, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert not check or result.returncode == 0, result.stderr
    return result


def test_help_names_every_command():
    text = berth("--help").stdout
    for command in ("serve", "transcribe", "models", "doctor", "bench"):
        assert command in text
        options = berth(command, "--help").stdout
        assert "--log-level" in options and berth("help", command).stdout == options
    assert berth("help").stdout == text


@pytest.fixture(scope="module")
def place():
    """What a person may name by mistake, where anybody may look."""
    with tempfile.TemporaryDirectory(prefix="berth-cli-") as name:
        folder = pathlib.Path(name)
        os.chmod(folder, 0o755)
        for sub in ("dir", "none", "models/m", "closed"):
            (folder / sub).mkdir(parents=True)
        (folder / "models" / "m" / "config.pbtxt").write_text('backend: "null"\n')
        (folder / "text").write_text("hello")
        (folder / "hello.wav").write_text("hello")
        for empty in ("empty", "empty.s16"):
            (folder / empty).write_bytes(b"")
        (folder / "short.s16").write_bytes(bytes(20))
        os.mkfifo(folder / "fifo")
        for secret in ("secret", "secret.s16"):
            (folder / secret).write_text("secret")
            os.chmod(folder / secret, 0)
        os.chmod(folder / "closed", 0)
        certificate(folder, "own")
        certificate(folder, "other")
        own = ["openssl", "x509", "-req", "-in", "own.csr", "-signkey", "own.key", "-days", "-1", "-out", "old.pem"]
        subprocess.run(["openssl", "req", "-new", "-key", "own.key", "-subj", "/CN=localhost", "-out", "own.csr"],
                       cwd=folder, check=True, capture_output=True)
        subprocess.run(own, cwd=folder, check=True, capture_output=True)
        pem = (folder / "own.pem").read_text()
        (folder / "damaged.pem").write_text(pem.replace("\nM", "\n!", 1))
        (folder / "cut.pem").write_text(pem + pem[:200])
        yield folder
        os.chmod(folder / "closed", 0o700)


def certificate(folder, name):
    """NAME.pem, which signs itself, for localhost; NAME.key."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-keyout", f"{name}.key", "-out", f"{name}.pem"],
                   cwd=folder, check=True, capture_output=True)


def typed(place, line, *more, **kwargs):
    """One command as it is typed in that folder. Its errors are one or two sentences."""
    result = subprocess.run([BERTH, *line.split(), *more], cwd=place, capture_output=True, text=True, timeout=300,
                            stdin=subprocess.DEVNULL, **kwargs)
    told = [text for text in result.stderr.splitlines() if text.startswith("berth: ")]
    assert 1 <= len(told) <= 2 and all(15 < len(text) < 250 for text in told), result.stderr
    assert result.returncode >= 0, result.returncode  # by no signal
    return result, "\n".join(told)


# Nothing listens at port 1 of 127.0.0.1, and nothing in .invalid has an address.
SERVE = "serve --models models --listen 127.0.0.1:0 "
INFER = "bench infer --model m --duration 100ms --warmup 0 --url http://127.0.0.1:1 "
ONCE = "--rows 1 --runs 1 --seconds 0.1 "
TYPED_WRONGLY = [
    ("nonsense", "no command 'nonsense'"), ("help nonsense", "no command 'nonsense'"), ("--nonsense", "before --nonsense"),
    ("-v", "before -v"), ("serve --modles x", "--models"), ("serve -x", "berth serve --help"),
    ("doctor --models x", "berth doctor"), ("transcribe --listen x y", "berth transcribe"), ("models --models", "wants a value"),
    ("bench infer --url", "wants a value"), ("serve --no-models", "--models"), ("serve models", "'models'"),
    ("doctor now", "'now'"), ("models now", "'now'"), ("doctor --log-level some", "error, warn, info or debug"),
    (SERVE + "--queue-max 0", "--queue-max"), (SERVE + "--queue-max -1", "from 1 to"), (SERVE + "--queue-max ten", "whole number"),
    (SERVE + "--queue-max 99999999999999999999", "from 1 to"), (SERVE + "--queue-max=", "whole number"),
    (SERVE + "--request-timeout 30", "30s"), (SERVE + "--request-timeout 1d", "30s"), (SERVE + "--bytes-budget 10X", "512M"),
    (SERVE + "--media-in-process=maybe", "true or false"), ("bench infer --rate fast", "a number"),
    (SERVE + "--tls-key key.pem", "--tls-cert is missing"), (SERVE + "--tls-cert cert.pem", "--tls-key is missing"),
    (SERVE + "--errors some", "some"), (SERVE + "--model-control-mode some", "some"), (SERVE + "--cpu-worker some", "some"),
    ("serve --models=", "--models"), ("serve --models models --listen=", "--listen"),
    ("serve --models models --listen nowhere", "ADDR:PORT"), ("serve --models models --listen 127.0.0.1", "ADDR:PORT"),
    ("serve --models models --listen 127.0.0.1:http", "ADDR:PORT"), ("serve --models models --listen ::1:80", "ADDR:PORT"),
    ("serve --models models --listen 127.0.0.1:99999", "port is past 65535"),
    ("transcribe", "no file"), ("transcribe --format yaml x", "yaml"), ("transcribe --words x", "verbose_json"),
    ("transcribe --models models --language klingon x", "klingon"),
    ("models --server ftp://127.0.0.1", "http://HOST:PORT"), ("models --server http://", "http://HOST:PORT"),
    ("models --server http://127.0.0.1:99999", "http://HOST:PORT"), ("transcribe --server nonsense://x text", "http://HOST:PORT"),
    ("models --server http://127.0.0.1:1 --tls-ca own.pem", "--tls-ca is for an https:// server"),
    ("models --server 127.0.0.1:1 --tls-ca own.pem", "--tls-ca is for an https:// server"),
    ("transcribe --server http://127.0.0.1:1 --tls-ca own.pem text", "--tls-ca is for an https:// server"),
    ("bench", "say what"), ("bench nonsense", "say what"), ("bench transcribe", "audio files"), ("bench infer", "--model is needed"),
    (INFER + "--input x", "NAME:TYPE:DIMS"), (INFER + "--input :FP32:1", "NAME:TYPE:DIMS"), (INFER + "--input I:FP31:1", "TYPE"),
    (INFER + "--input I:STRING:1", "TYPE"), (INFER + "--input I:FP32:", "DIMS"), (INFER + "--input I:FP32:a", "DIMS"),
    (INFER + "--input I:FP32:1,", "DIMS"), (INFER + "--input I:FP32:-1", "DIMS"), (INFER + "--input I:FP32:1;2", "DIMS"),
    (INFER + "--input I:FP32:1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "DIMS"), (INFER + "--input I:FP32:99999999999,99999999", "MiB"),
    (INFER + "--input I:FP32:268435457", "MiB"), (INFER + "--input I:FP32:1 more", "'more'"),
    ("bench infer --model m --input I:FP32:1 --url https://127.0.0.1:1", "plain HTTP"),
    ("bench infer --model m --input I:FP32:1 --url ftp://127.0.0.1:1", "http://HOST:PORT"),
    ("bench infer --model m --input I:FP32:1 --url=", "http://HOST:PORT"),
    ("bench infer --model m --input I:FP32:1 --url http://a:b", "http://HOST:PORT"),
    ("bench infer --model m --input I:FP32:1 --url http://127.0.0.1:65536", "http://HOST:PORT"),
    ("bench infer --model m --input I:FP32:1 --url http://[::1:80", "http://HOST:PORT"),
    ("bench infer --model m --input I:FP32:1 --url http://127.0.0.1:1/v2", "http://HOST:PORT"),
    ("bench parakeet", "--model is needed"), ("bench parakeet --random some", "some"),
    ("bench parakeet --random nano --stages some", "some"),
    ("bench parakeet --random nano --stages=", "--stages"), ("bench parakeet --random nano --rows 0", "--rows"),
    ("bench parakeet --random nano --rows=", "--rows"), ("bench parakeet --random nano --rows 1,,2", "--rows"),
    ("bench parakeet --random nano --rows 257", "--rows"), ("bench parakeet --random nano --device tpu:0", "--device"),
    ("bench parakeet --random nano --precision fp7", "fp16 or fp8"), ("bench parakeet --model m --keep x", "--random"),
]
WENT_WRONG = [
    ("serve --models nowhere", "nowhere: No such file"), ("serve --models text", "text: Not a directory"),
    ("serve --models closed", "closed: Permission denied"), ("models --models nowhere", "nowhere: No such file"),
    ("models --models text", "text: Not a directory"), ("models --models closed", "closed: Permission denied"),
    ("serve --models models --listen berth.invalid:80", "berth.invalid:80: "),
    ("serve --models models --listen 192.0.2.1:80", "192.0.2.1:80: Cannot assign requested address"),
    ("serve --models models --listen 127.0.0.1:TAKEN", ": Address already in use"),
    (SERVE + "--keys-file nowhere", "nowhere: No such file"), (SERVE + "--keys-file dir", "dir is not a file"),
    (SERVE + "--keys-file fifo", "fifo is not a file"), (SERVE + "--keys-file secret", "secret: Permission denied"),
    (SERVE + "--keys-file empty", "no key"), (SERVE + "--keys-file text", "sha256:"),
    (SERVE + "--tls-cert nowhere --tls-key own.key", "certificate in nowhere: No such file"),
    (SERVE + "--tls-cert secret --tls-key own.key", "certificate in secret: Permission denied"),
    (SERVE + "--tls-cert dir --tls-key own.key", "certificate in dir: "),
    (SERVE + "--tls-cert text --tls-key own.key", "certificate in text: it holds none in PEM"),
    (SERVE + "--tls-cert empty --tls-key own.key", "certificate in empty: it holds none in PEM"),
    (SERVE + "--tls-cert own.pem --tls-key nowhere", "private key in nowhere: No such file"),
    (SERVE + "--tls-cert own.pem --tls-key own.pem", "private key in own.pem: it holds none in PEM"),
    (SERVE + "--tls-cert own.pem --tls-key other.key", "private key in other.key: it is not the certificate's"),
    (SERVE + "--cuda-worker nowhere", "nowhere"), (SERVE + "--cuda-worker dir", "dir"),
    ("transcribe --models models text", "no model 'whisper-tiny.en' in models"),
    ("transcribe --models none text fifo dir", "no model 'whisper-tiny.en' in none"),
    ("transcribe --models models --model m text", "'m' does not transcribe"),
    ("transcribe --models nowhere text", "nowhere: No such file"),
    ("transcribe --server http://127.0.0.1:1 nowhere", "nowhere: cannot open: No such file"),
    ("transcribe --server http://127.0.0.1:1 secret", "secret: cannot open: Permission denied"),
    ("transcribe --server http://127.0.0.1:1 dir", "dir: not a regular file"),
    ("transcribe --server http://127.0.0.1:1 fifo", "fifo: not a regular file"),
    ("transcribe --server http://127.0.0.1:1 empty", "the file is empty"), ("transcribe --server http://127.0.0.1:1 -", "standard input"),
    ("transcribe --server http://127.0.0.1:1 text", "no answer from http://127.0.0.1:1: Connection refused"),
    ("models --server 127.0.0.1:1", "no answer from 127.0.0.1:1: Connection refused"),
    ("models --server http://berth.invalid", "resolve"),
    ("models --server https://127.0.0.1:1 --tls-ca nowhere", "--tls-ca: cannot open nowhere: No such file"),
    ("models --server https://127.0.0.1:1 --tls-ca secret", "--tls-ca: cannot open secret: Permission denied"),
    ("models --server https://127.0.0.1:1 --tls-ca dir", "--tls-ca: dir is not a file"),
    ("models --server https://127.0.0.1:1 --tls-ca fifo", "--tls-ca: fifo is not a file"),
    ("models --server https://127.0.0.1:1 --tls-ca empty", "empty holds no certificate in PEM"),
    ("models --server https://127.0.0.1:1 --tls-ca own.key", "own.key holds no certificate in PEM"),
    ("models --server https://127.0.0.1:1 --tls-ca damaged.pem", "certificate 1 of damaged.pem is damaged"),
    ("transcribe --server https://127.0.0.1:1 --tls-ca cut.pem text", "certificate 2 of cut.pem is damaged"),
    (INFER + "--input I:FP32:1", "127.0.0.1:1: Connection refused"),
    ("bench infer --model m --input I:FP32:1 --url http://berth.invalid:80", "cannot find berth.invalid"),
    ("bench transcribe nowhere", "nowhere: cannot open: No such file"), ("bench transcribe dir", "dir: not a regular file"),
    ("bench transcribe fifo", "fifo: not a regular file"), ("bench transcribe empty", "the file is empty"),
    ("bench transcribe secret", "secret: cannot open: Permission denied"),
    ("bench transcribe --url http://127.0.0.1:1 text", "text: no answer from http://127.0.0.1:1: Connection refused"),
    ("bench parakeet --model nowhere", "nowhere/config.json"), ("bench parakeet --model text", "text/config.json"),
    ("bench parakeet --random nano nowhere.s16", "nowhere.s16: cannot open: No such file"),
    ("bench parakeet --random nano dir", "dir: not a regular file"), ("bench parakeet --random nano text", "neither .s16 nor .f32"),
    ("bench parakeet --random nano empty.s16", "the file is empty"), ("bench parakeet --random nano short.s16", "10 ms"),
    ("bench parakeet --random nano secret.s16", "secret.s16: cannot open: Permission denied"),
    ("bench parakeet --random nano --keep nowhere/deep", "nowhere/deep: No such file"),
    ("bench parakeet --random nano --keep text", "text/config.json: Not a directory"),
    ("bench parakeet --random nano --dump nowhere/deep " + ONCE, "nowhere/deep/1x1600.pcm.f32: No such file"),
    ("bench parakeet --random nano --dump text " + ONCE, "text/1x1600.pcm.f32: Not a directory"),
]


@pytest.mark.parametrize("line, says", TYPED_WRONGLY)
def test_what_was_typed_wrongly_ends_with_2(place, line, says):
    result, told = typed(place, line)
    assert result.returncode == 2 and says in told and result.stdout == "", result


def test_no_command_at_all():
    result = berth(check=False)
    assert result.returncode == 2 and "berth serve" in result.stderr and result.stdout == ""


def nobody():
    """Options of subprocess.run: as one who may not do everything, where the tests run as root."""
    return {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}


@pytest.mark.parametrize("line, says", WENT_WRONG)
def test_what_went_wrong_ends_with_1(place, line, says):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        line = line.replace("TAKEN", str(taken.getsockname()[1]))
        who = nobody() if "denied" in says else {}
        try:
            result, told = typed(place, line, **who)
        except PermissionError:
            pytest.skip("who may not do everything may not start berth where it lies")
    assert result.returncode == 1 and says in told, result


def test_the_environment_is_named(place):
    result, told = typed(place, "serve", env=dict(os.environ, BERTH_QUEUE_MAX="many"))
    assert result.returncode == 2 and "BERTH_QUEUE_MAX" in told
    result, told = typed(place, "models", env=dict(os.environ, BERTH_SERVER="http://127.0.0.1:1", BERTH_TLS_CA="own.pem"))
    assert result.returncode == 2 and "--tls-ca" in told


PRINTS = ["--help", "--version", "help serve", "bench --help", "options", "doctor", "doctor --json", "models --models models",
          "models --models models --json", "models --models none", "bench parakeet --random nano " + ONCE,
          "bench parakeet --json --random nano " + ONCE]


@pytest.mark.parametrize("line", PRINTS)
def test_what_is_printed_arrives_or_the_status_is_1(place, line):
    def run(end):
        return subprocess.run(["sh", "-c", f'trap "" PIPE; exec "$0" "$@" {end}', BERTH, *line.split()], cwd=place,
                              stderr=subprocess.PIPE, text=True, timeout=300, check=False)

    for end, why in ((">/dev/full", "No space left on device"), (">&-", "it is closed")):
        result = run(end)
        assert result.returncode == 1, (end, result)
        assert result.stderr == f"berth: cannot write to standard output: {why}\n"
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(["sh", "-c", 'trap "" PIPE; exec "$0" "$@"', BERTH, *line.split()], cwd=place, stdout=writer,
                            stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    os.close(writer)
    assert result.returncode == 1 and result.stderr == "berth: cannot write to standard output: Broken pipe\n", result


@pytest.mark.parametrize("name", ["1x1600.pcm.f32", "1x1600.encoded.f32", "1x1600.json"])
def test_a_full_disk_is_told(place, tmp_path, name):
    (tmp_path / name).symlink_to("/dev/full")
    result, told = typed(place, "bench parakeet --random nano " + ONCE, "--dump", str(tmp_path))
    assert result.returncode == 1 and told.endswith(f"{name}: No space left on device"), told


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_full_disk_is_told_of_what_is_kept(place, tmp_path, name):
    (tmp_path / name).symlink_to("/dev/full")
    result, told = typed(place, "bench parakeet --random nano " + ONCE, "--keep", str(tmp_path))
    assert result.returncode == 1 and told.endswith(f"{name}: No space left on device"), told


def test_a_bench_leaves_nothing_behind(place, tmp_path):
    """Nor does one whose reader leaves."""
    line = [BERTH, "bench", "parakeet", "--random", "nano", *ONCE.split()]
    for stdout in (subprocess.DEVNULL, open("/dev/full", "wb")):
        subprocess.run(line, cwd=place, stdout=stdout, stderr=subprocess.DEVNULL, timeout=300, check=False,
                       env=dict(os.environ, TMPDIR=str(tmp_path)))
        assert list(tmp_path.iterdir()) == []
    stdout.close()


@pytest.mark.parametrize("end", [">/dev/full", ">&-", ">&- 2>&- <&-"])
def test_serve_serves_on_without_its_greeting(place, tmp_path, end):
    address = f"127.83.{os.getpid() >> 8 & 255}.{os.getpid() & 255}:8000"  # nobody else's: it cannot say which it took
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(["sh", "-c", f'exec "$0" "$@" {end}', BERTH, "serve", "--models", "models", "--listen",
                                    address], cwd=place, stderr=log)
    try:
        def answers():
            try:
                with urllib.request.urlopen(f"http://{address}/health", timeout=PATIENCE_S) as answer:
                    return answer.status == 200
            except OSError:
                assert process.poll() is None
                return False

        wait_until(answers)
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    if "2>" not in end:
        assert "cannot write to standard output" in (tmp_path / "log").read_text()


def test_bench_without_one_good_answer_ends_with_1(null_models, serve, place):
    server = serve(null_models)
    result, told = typed(place, "bench infer --model nope --input I:FP32:1 --duration 200ms --warmup 0 --url", server.url)
    assert result.returncode == 1 and "the server answered 404" in told, result


def test_tls_ca(null_models, serve, place):
    """Only who has the certificate's authority and its name is answered."""
    server = serve(null_models, f"--tls-cert={place}/own.pem", f"--tls-key={place}/own.key")
    named = f"https://localhost:{server.port}"
    for more in (["--tls-ca", "own.pem"], []):
        result = subprocess.run([BERTH, "models", "--server", named, *more], cwd=place, capture_output=True, text=True,
                                timeout=300, env=dict(os.environ, BERTH_TLS_CA="own.pem"), check=False)
        assert result.returncode == 0 and "identity" in result.stdout, result.stderr
    (place / "pair.pem").write_text((place / "other.pem").read_text() + (place / "own.pem").read_text())
    assert "identity" in berth("models", "--server", named, "--tls-ca", place / "pair.pem").stdout
    untrusted = "its certificate is not signed by "
    for line, says in (
            (f"models --server {named}", untrusted + "an authority that this system trusts; see --tls-ca"),
            (f"models --server {named} --tls-ca other.pem", untrusted + "one of other.pem"),
            (f"transcribe --server {named} --tls-ca other.pem text", "text: " + named + " is not trusted: " + untrusted),
            (f"models --server https://127.0.0.1:{server.port} --tls-ca own.pem", "its certificate is for another name"),
            (f"transcribe --server {named} --tls-ca own.pem text", "the server answered 404"),
            (f"models --server http://localhost:{server.port}", "is it an https:// server?"),
            (f"bench infer --input I:FP32:1 --model m --duration 100ms --warmup 0 --url http://localhost:{server.port}",
             "is it an http:// server?")):
        result, told = typed(place, line)
        assert result.returncode == 1 and says in told, result
    old = serve(null_models, f"--tls-cert={place}/old.pem", f"--tls-key={place}/own.key")
    result, told = typed(place, f"models --server https://localhost:{old.port} --tls-ca old.pem")
    assert result.returncode == 1 and "its certificate has expired" in told, told
    plain = serve(null_models)
    result, told = typed(place, f"models --server https://localhost:{plain.port} --tls-ca own.pem")
    assert result.returncode == 1 and "is it an http:// server?" in told, told


def test_triton_ports(null_models):
    host = f"127.82.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"  # nobody else's: the port is a fixed one
    process = subprocess.Popen([BERTH, "serve", "--models", null_models, "--listen", f"{host}:0", "--triton-ports"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert f"{host}:" in process.stdout.readline()
        assert process.stdout.readline() == f"berth serves on http://{host}:8002\n"
        with urllib.request.urlopen(f"http://{host}:8002/metrics", timeout=PATIENCE_S) as answer:
            assert b"nv_inference_count" in answer.read()
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        process.stdout.close()


def test_doctor():
    assert {item["what"] for item in json.loads(berth("doctor", "--json").stdout)} >= {"processor", "engines", "gpu"}
    assert "processor" in berth("doctor").stdout


def test_options_document_is_up_to_date():
    page = DATA.parents[1] / "docs" / "options.md"
    assert berth("options").stdout == page.read_text(), "run: build/berth options >docs/options.md"


def test_models(null_models, serve):
    rows = json.loads(berth("models", "--models", null_models, "--json").stdout)
    assert {"identity", "ocr_rec"} <= {row["name"] for row in rows}
    server = serve(null_models)
    rows = json.loads(berth("models", "--server", server.url, "--json").stdout)
    row = next(row for row in rows if row["name"] == "identity")
    assert row["state"] == "READY" and "device" not in row  # not loaded
    assert server.call("POST", "/v2/models/identity/infer", b'{"inputs":[{"name":"INPUT0","shape":[1,1],'
                       b'"datatype":"FP32","data":[1]}]}')[0] == 200
    rows = json.loads(berth("models", "--server", server.url, "--json").stdout)
    row = next(row for row in rows if row["name"] == "identity")
    assert row["device"] == "cpu:0" and "fallback" not in row
    table = berth("models", "--server", server.url).stdout.splitlines()
    assert table[0].split() == ["MODEL", "VERSION", "STATE", "DEVICE", "BYTES"]
    assert next(line for line in table if line.startswith("identity ")).split()[3] == "cpu:0"
    usage = server.json("/v2/models/identity/stats")["model_stats"][0]["memory_usage"]
    assert all((item["type"], item["id"]) == ("CPU", "0") for item in usage)


def test_devices_are_told(null_models, serve):
    """And the repository is looked at once at start."""
    server = serve(null_models)
    assert server.metric("berth_repository_scans_total") == 1
    assert server.metric("berth_model_bytes", 'device="cpu:0"') == 0
    assert server.metric("berth_model_bytes_limit", 'device="cpu:0"') > 0
    assert server.metric("berth_device_well", 'device="cpu:0"') == 1
    assert server.metric("berth_device_faults_total") == server.metric("berth_device_fallbacks_total") == 0
    body = b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}'
    assert server.call("POST", "/v2/models/identity/infer", body)[0] == 200
    assert server.metric("berth_model_warm", 'model="identity",version="1",device="cpu:0"') == 1
    assert server.metric("berth_model_fallback", 'model="identity"') == 0
    assert server.metric("berth_model_warm", 'model="sleepy",version="1"}') == 0  # nowhere
    assert server.metric("nv_inference_count", 'model="identity",version="1"}') == 1


@pytest.mark.parametrize("flags", [[], ["--cpu-worker=process"]])
def test_parameters_that_no_engine_reads_are_warned_of_once(tmp_path, serve, flags):
    for version in ("1", "2"):
        (tmp_path / "models" / "m" / version).mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text(
        IDENTITY + 'version_policy { all {} }\nparameters { key: "sleep_ms" value { string_value: "1" } }\n'
        'parameters { key: "sleeps_ms" value { string_value: "1" } }\n')
    with open(tmp_path / "log", "w", encoding="utf-8") as log:
        server = serve(tmp_path / "models", "--model-control-mode=none", *flags, stderr=log)
        server.wait_metric("berth_model_warm", 1, 'model="m",version="1"')
        server.wait_metric("berth_model_warm", 1, 'model="m",version="2"')
        server.stop()
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if "has no parameter" in line]
    assert len(lines) == 1 and "m/config.pbtxt:8:14: engine 'null' has no parameter 'sleeps_ms'" in lines[0], lines
    assert "it is ignored (known: sleep_ms, " in lines[0]


def test_empty_repository_is_told(tmp_path, serve):
    (tmp_path / "models").mkdir()
    with open(tmp_path / "log", "w", encoding="utf-8") as log:
        server = serve(tmp_path / "models", "--model-control-mode=poll", "--repository-poll=100ms", stderr=log)
        wait_until(lambda: server.metric("berth_repository_scans_total") > 3)
        assert berth("models", "--server", server.url).stdout == f"{server.url} holds no model\n"
        server.stop()
    assert (tmp_path / "log").read_text().count(f"{tmp_path / 'models'} holds no model") == 1
    assert berth("models", "--models", tmp_path / "models").stdout == f"{tmp_path / 'models'} holds no model\n"
    assert json.loads(berth("models", "--models", tmp_path / "models", "--json").stdout) == []


def test_models_tells_what_is_wrong(tmp_path):
    (tmp_path / "text" / "1").mkdir(parents=True)
    (tmp_path / "text" / "1" / "model.onnx").write_text("hello")
    rows = json.loads(berth("models", "--models", tmp_path, "--json").stdout)
    assert [row["state"] for row in rows] == ["FAILED"] and "usable ONNX" in rows[0]["reason"]


def expected(name):
    return json.loads((DATA / "expected" / f"{name}.json").read_text())


def test_transcribe_fp32_equals_faster_whisper(speech, speech_models):
    text = berth("transcribe", "--models", speech_models, "--model", "whisper-tiny.en-fp32",
                 speech / "two_cities.wav").stdout
    assert words_of(text) == words_of(expected("two_cities.ts.float32")["text"])


def test_transcribe_int8_within_two_percent(speech, speech_models):
    text = berth("transcribe", "--models", speech_models, speech / "two_cities.wav").stdout
    want = words_of(expected("two_cities.ts.float32")["text"])
    assert word_errors(want, words_of(text)) <= 0.02 * len(want)


def test_word_times_within_20_ms(speech, speech_models):
    answer = json.loads(berth("transcribe", "--models", speech_models, "--model", "whisper-tiny.en-fp32",
                              "--words", "--format", "verbose_json", speech / "two_cities.wav").stdout)
    want = expected("two_cities.ts.float32")["words"]
    got = answer["words"]
    assert len(got) == len(want)
    near = sum(abs(a["start"] - b["start"]) <= 0.0201 and abs(a["end"] - b["end"]) <= 0.0201
               for a, b in zip(got, want))
    assert near >= 0.97 * len(want), f"{near} of {len(want)}"


def test_transcribe_by_a_server(speech, speech_server):
    text = berth("transcribe", "--server", speech_server.url, speech / "two_cities.wav").stdout
    want = words_of(expected("two_cities.ts.float32")["text"])
    assert word_errors(want, words_of(text)) <= 0.02 * len(want)
    result = berth("transcribe", "--server", speech_server.url, "--model", "nope", speech / "two_cities.wav",
                   check=False)
    assert result.returncode == 1 and "nope" in result.stderr


def test_bench(null_models, serve):
    server = serve(null_models)

    def measure(*flags):
        result = json.loads(berth("bench", "infer", "--url", server.url, "--model", "identity", "--input",
                                  "INPUT0:FP32:1,16", "--duration", "1s", "--warmup", "200ms", "--json",
                                  "--pid", server.pid, *flags).stdout)
        assert set(result["statuses"]) == {"200"} and result["broken"] == 0
        assert result["p50_ms"] <= result["p99_ms"] and result["answered"] > 0
        assert result["cpu_ms_per_request"] > 0 and "audio_per_s" not in result
        return result["requests_per_s"]

    assert measure() > 0
    # A machine that stands still for a moment sends fewer, but not each time; never more.
    rates = []
    while not any(rate > 100 for rate in rates):
        assert len(rates) < 20, rates
        rates.append(measure("--rate", "200"))
    assert max(rates) < 300
    text = berth("bench", "infer", "--url", server.url, "--model", "identity", "--input", "INPUT0:FP32:1,16",
                 "--duration", "200ms", "--warmup", "10ms").stdout
    assert "requests_per_s" in text and "cpu_ms" not in text and "audio_per_s" not in text
