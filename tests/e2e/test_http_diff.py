"""HTTP/1.1 as net/ reads it against h11: the same requests from the same bytes, or a refusal.

Both get requests that are right, and the same ones bent in ways that smuggling lives from. Where both
take a request it must be the same one, field for field and byte for byte, with the next request
beginning at the same place. What h11 takes and berth refuses must be one of the rules of
src/net/README.md (N1, N2, N4); what h11 refuses berth must refuse too, with the exceptions below.
"""

import json
import os
import pathlib
import random
import struct
import subprocess
import urllib.parse

import h11
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOAK = os.environ.get("BERTH_SOAK", "") not in ("", "0")
CASES = 200_000 if SOAK else 20_000

# What berth refuses and h11 takes, by the words of the refusal.
STRICTER = (
    "LF without CR",
    "folded header lines are not taken",
    "more than one Content-Length",
    "both Content-Length and Transfer-Encoding",
    "Transfer-Encoding in HTTP/1.0",
    "malformed Host",
    "malformed Content-Length",
    "the request target does not begin with /",
    "byte in the request target that must be encoded",
    "percent-encoding in the path",
    "an encoded control byte or slash in the path",
    "the path is not UTF-8",
    "invalid HTTP method",
    "invalid URL",
    "unexpected content-length header",
    "only HTTP/1.1 and HTTP/1.0 are spoken here",
    "too many header fields",
    "malformed chunk size",
    "a chunk size is too large",
    "a chunk's extensions are too long",
    "malformed chunk extension",
    "malformed trailer",
    "CR without LF in the chunk framing",
    "invalid character in content-length header",
    "neither gzip nor deflate",
    "not what its Content-Encoding says",
    "the compressed body is cut off",
    "the body is longer than",
    "control byte in the head",
)


def probe_path():
    for folder in (os.environ.get("BERTH_BIN", ""), str(ROOT / "build" / "berth")):
        path = pathlib.Path(folder).parent / "tests" / "http_probe"
        if path.exists():
            return path
    return None


@pytest.fixture(scope="module")
def probe():
    path = probe_path()
    if path is None:
        pytest.skip("http_probe is not built")
    with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:

        def ask(data, cut):
            process.stdin.write(struct.pack("<IB", len(data), cut) + data)
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def read_h11(data):
    """(requests, refusal, ended) as h11 reads them; requests as the probe prints them. ended: it
    would close the connection after the last, and does not look at what follows."""
    requests = []
    try:
        while True:
            if data.startswith(b"\r\n"):
                data = data[2:]  # berth skips one empty line before a request (N1), h11 does not
            if data == b"\r":
                return requests, "", False  # and its first half may be one
            conn = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 16)
            conn.receive_data(data)
            while not isinstance(event := conn.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Request):
                    request = {
                        "method": event.method.decode("latin-1"),
                        "target": event.target.decode("latin-1"),
                        "version": event.http_version.decode(),
                        "fields": [(n.decode("latin-1").lower(), v.decode("latin-1"))
                                   for n, v in event.headers],
                        "body": b"",
                    }
                elif isinstance(event, h11.Data):
                    request["body"] += bytes(event.data)
                else:  # NEED_DATA, PAUSED
                    return requests, "", False
            requests.append(request)
            if conn.their_state is not h11.DONE:
                return requests, "", True
            data = conn.trailing_data[0]
    except h11.RemoteProtocolError as error:
        return requests, str(error), False


def same(ours, theirs):
    target = theirs["target"]
    if not target.startswith("/"):
        parts = urllib.parse.urlsplit(target)
        target = (parts.path or "/") + ("?" + parts.query if parts.query else "")
    path, _, query = target.partition("?")
    # h11 lowers names, and the value of Transfer-Encoding.
    fields = [(n.lower(), v) for n, v in ours["fields"]]
    fields = [(n, v.lower() if n == "transfer-encoding" else v) for n, v in fields]
    return (
        ours["method"] == theirs["method"]
        and ours["path"] == urllib.parse.unquote_to_bytes(path).decode("latin-1")
        and ours["query"] == query
        and ours["version"] == theirs["version"]
        and fields == theirs["fields"]
        and ours["body"] == theirs["body"].hex()
    )


def compare(probe, data, cut):
    """Number of requests berth took, and the status of its refusal or 0."""
    ours = probe(data, cut)
    theirs, refusal, ended = read_h11(data)
    taken = ours["requests"]
    for one, other in zip(taken, theirs):
        assert same(one, other), (data, one, other)
    if len(taken) < len(theirs):
        assert ours["status"] in (400, 413, 415, 431, 505), (data, ours, theirs)
        assert any(words in ours["reason"] for words in STRICTER), (data, ours)
    elif ended:  # it has no keep-alive for HTTP/1.0
        assert len(taken) == len(theirs) or theirs[-1]["version"] == "1.0", (data, ours, theirs)
    elif len(taken) > len(theirs) and "Transfer-Encoding" in refusal:
        # In a trailer, which berth drops and h11 judges as it does a head.
        fields = [[n.lower(), v.lower()] for n, v in taken[len(theirs)]["fields"]]
        assert ["transfer-encoding", "chunked"] in fields, (data, ours, theirs)
    else:
        assert len(taken) == len(theirs), (data, ours, theirs)
        assert not refusal or ours["status"] != 0, (data, ours, theirs)
    return len(taken), ours["status"]


HEADS = [
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /v2/models/a%20b?x=1&y=%2F HTTP/1.1\r\nHost: a:80\r\nAccept: */*\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: T\r\n\r\n"
    b"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\n",
    b"GET /b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"POST /b HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc",
    b"PUT http://a/c?d HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    b"DELETE /c HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Long: " + b"v" * 300 + b"\r\n\r\n",
    b"HEAD /c HTTP/1.1\r\nHOST:a\r\nX-Empty:\r\nX-Blank: \t \r\n\r\n",
]
PIECES = [
    b"\r\n", b"\n", b"\r", b" ", b"\t", b"\0", b":", b",", b"+", b"-", b"0", b"1", b"9", b"x", b"\xff",
    b"\x0b", b"\x7f", b";", b"%", b"%00", b"%2f", b"#", b"?", b"\r\n ", b"\r\n\t", b"HTTP/1.1",
    b"HTTP/1.0", b"HTTP/2.0", b"Content-Length: 3\r\n", b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n",
    b"transfer-encoding : chunked\r\n", b"Transfer-Encoding:\x0bchunked\r\n", b"Host: b\r\n",
    b"Connection: close\r\n", b"0\r\n\r\n", b"1\r\nz\r\n", b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
    b"Content-Length", b"chunked", b"xchunked", b"chunked, chunked", b"0x5", b"5 ", b"05",
]


def bend(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        at = rng.randrange(len(data) + 1)
        what = rng.randrange(5)
        if what == 0:
            data[at:at] = rng.choice(PIECES)
        elif what == 1:
            del data[at:at + rng.choice((1, 1, 2, 5))]
        elif what == 2 and at < len(data):
            data[at] = rng.randrange(256)
        elif what == 3:  # at a line's start, where fields go
            line = data.rfind(b"\n", 0, at) + 1
            data[line:line] = rng.choice(PIECES)
        else:
            piece = rng.choice(PIECES)
            data[at:at + len(piece)] = piece
    return bytes(data)


@pytest.mark.parametrize("head", HEADS)
def test_plain(probe, head):
    """Unbent requests are taken by both, alone and followed by another, whatever the cut."""
    after = b"GET /after HTTP/1.1\r\nHost: a\r\n\r\n"
    for cut in range(0, 256, 5):
        taken, status = compare(probe, head, cut)
        assert (taken, status) == (1, 0)
        compare(probe, head + after, cut)


def test_bent(probe, record_property):
    rng = random.Random(20261129)
    refusals = 0
    for _ in range(CASES):
        data = bend(rng, b"".join(rng.choice(HEADS) for _ in range(rng.choice((1, 1, 2, 3)))))
        _, status = compare(probe, data, rng.randrange(256))
        refusals += status != 0
    assert 0.05 * CASES < refusals < 0.95 * CASES
    record_property("figure", f"requests parsed beside h11: {CASES:,}; {refusals:,} refused")
