"""Clients at their worst. After each: no crash, nothing left over, and the server still serves."""

import errno
import json
import os
import random
import resource
import socket
import struct
import time

import pytest

from conftest import SOAK, Berth, wait_until

BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()
REQUEST = b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (b"identity", len(BODY)) + BODY
MEMORY_SLACK = 24 << 20
SEED = 1000 * (int(os.environ.get("BERTH_TEST_SEED", "1")) - 1)  # added to those below


@pytest.fixture(scope="module")
def server(null_models):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    server = Berth(null_models, "--http-head-timeout", "2s", "--http-body-timeout", "2s",
                   "--http-idle-timeout", "120s")
    for _ in range(50):
        serves(server)
    yield server
    server.stop()


def serves(server):
    assert server.alive()
    status, _, text = server.call("POST", "/v2/models/identity/infer", BODY)
    assert status == 200 and json.loads(text)["outputs"][0]["data"] == [1.0, 2.0]


def settled(server, memory, descriptors):
    """Connections gone, bytes given back, memory as before; returns by how much it grew."""
    server.wait_metric("berth_http_connections", 1)
    server.wait_metric("berth_slab_bytes", 0)
    server.wait_metric("berth_running_requests", 0)
    server.wait_metric("berth_queued_requests", 0)
    wait_until(lambda: server.rss() - memory <= MEMORY_SLACK and server.descriptors() <= descriptors + 2,
               lambda: f"{server.rss() - memory >> 20} MiB more, {server.descriptors()} descriptors")
    grown = server.rss() - memory
    serves(server)
    return max(grown, 0)


def test_clients_that_leave_at_random_moments(server, record_property):
    clients = 10000 if SOAK else 1000
    memory, descriptors = server.rss(), server.descriptors()
    rng = random.Random(SEED + 1)
    big = bytes(3 << 20)
    header = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, len(big) // 4], "datatype": "FP32",
                                     "parameters": {"binary_data_size": len(big)}}]}).encode()
    upload = (b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n"
              b"Inference-Header-Content-Length: %d\r\n\r\n" % (len(header) + len(big), len(header))) + header + big
    sleepy = REQUEST.replace(b"identity", b"sleepy")
    for i in range(clients):
        data = rng.choice([REQUEST, REQUEST, sleepy, REQUEST * 5, upload])
        sock = server.connect()
        sock.setblocking(False)
        try:
            sock.send(data[:rng.randrange(1, len(data) + 1)])
            if rng.random() < 0.3:
                time.sleep(rng.random() * 0.01)
            if rng.random() < 0.3:
                sock.recv(rng.randrange(1, 200))
        except BlockingIOError:
            pass
        if rng.random() < 0.5:  # a reset instead of a polite end
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    grown = settled(server, memory, descriptors)
    record_property("figure", f"clients that left at random moments: {clients:,}; {grown >> 10:,} KiB more than before")


def test_slow_loris(server, record_property):
    memory, descriptors = server.rss(), server.descriptors()
    socks = [server.connect() for _ in range(200)]
    started = time.monotonic()
    heads, bodies = socks[:100], socks[100:]
    for sock in bodies:
        sock.sendall(REQUEST[:-10])
    while time.monotonic() - started < 4:
        for sock in heads:
            try:
                sock.send(b"G")
            except OSError:
                pass
        serves(server)
        time.sleep(0.2)
    for sock in socks:
        try:
            answer = sock.recv(4096)
        except ConnectionResetError:
            answer = b""
        assert answer == b"" or answer.startswith((b"HTTP/1.1 408", b"HTTP/1.1 400")), answer
        sock.close()
    grown = settled(server, memory, descriptors)
    record_property("figure", f"slow-loris connections at a time: 200; {grown >> 10:,} KiB more than before")


def test_ten_thousand_idle_connections(server, record_property):
    memory, descriptors = server.rss(), server.descriptors()
    socks = []
    for i in range(10000):
        # Spread over loopback addresses, so that ports do not run out.
        sock = socket.socket()
        sock.bind((f"127.0.0.{2 + i // 4000}", 0))
        sock.connect((server.host, server.port))
        socks.append(sock)
        if i % 1000 == 0:
            serves(server)
    server.wait_metric("berth_http_connections", 10001)
    serves(server)
    per_connection = (server.rss() - memory) / 10000
    assert per_connection < 4096, f"{per_connection:.0f} bytes for an idle connection"
    for sock in socks:
        sock.close()
    grown = settled(server, memory, descriptors)
    record_property("figure", f"idle connections at a time: 10,000 of {per_connection:,.0f} bytes each; "
                              f"{grown >> 10:,} KiB more than before")


def test_garbage(server, record_property):
    count = 5000 if SOAK else 500
    memory, descriptors = server.rss(), server.descriptors()
    rng = random.Random(SEED + 2)
    for i in range(count):
        with server.connect() as sock:
            data = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 400)))
            if i % 3 == 0:
                data = bytearray(REQUEST)
                for _ in range(rng.randrange(1, 8)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
                data = bytes(data)
            try:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                answer = sock.recv(4096)
            except (ConnectionResetError, BrokenPipeError):
                answer = b""
            except OSError as error:  # nothing is left to shut after a reset
                assert error.errno == errno.ENOTCONN
                answer = b""
        assert answer == b"" or answer.startswith(b"HTTP/1."), answer
    grown = settled(server, memory, descriptors)
    record_property("figure", f"connections with garbage: {count:,}; {grown >> 10:,} KiB more than before")


def test_pipelined_answers_come_in_order(server):
    requests = b"".join(
        REQUEST.replace(BODY, BODY.replace(b"[1, 2]", b"[%d, 2]" % i)).replace(
            b"Content-Length: %d" % len(BODY), b"Content-Length: %d" % (len(BODY) + len(str(i)) - 1))
        .replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\n" + (b"Connection: close\r\n" if i == 49 else b""))
        for i in range(50))
    # shape [1, 2] is bytes of the body too: only data may change
    requests = requests.replace(b'"shape": [49, 2]', b'"shape": [1, 2]')
    for i in range(49):
        requests = requests.replace(b'"shape": [%d, 2]' % i, b'"shape": [1, 2]')
    answer = server.raw(fix_lengths(requests))
    values = [json.loads(part)["outputs"][0]["data"][0] for part in bodies_of(answer)]
    assert values == [float(i) for i in range(50)]


def fix_lengths(stream):
    """Content-Length of each request made true again."""
    out = b""
    for request in stream.split(b"POST ")[1:]:
        head, _, body = request.partition(b"\r\n\r\n")
        lines = [b"Content-Length: %d" % len(body) if line.startswith(b"Content-Length") else line
                 for line in head.split(b"\r\n")]
        out += b"POST " + b"\r\n".join(lines) + b"\r\n\r\n" + body
    return out


def bodies_of(stream):
    while stream:
        head, _, rest = stream.partition(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n")
                      if line.lower().startswith(b"content-length"))
        yield rest[:length]
        stream = rest[length:]
