"""What is outside of a cluster, on one https port: outside.py PORT FOLDER DISK.

- /metrics: the room on DISK, as node_exporter would tell it of Postgres's machine;
- /jwks: the keys of an issuer of tokens, FOLDER/jwks.json, or 503 while FOLDER/issuer-away exists;
- POST /token: the server of tokens for Kafka, which gives none;
- POST: a service for callbacks, which answers 200, or 410 while FOLDER/service-gone exists.
"""

import http.server
import os
import ssl
import sys

PORT, FOLDER, DISK = int(sys.argv[1]), sys.argv[2], sys.argv[3]


def has(name):
    return os.path.exists(os.path.join(FOLDER, name))


def room():
    disk = os.statvfs(DISK)
    lines = [("avail", disk.f_bavail), ("size", disk.f_blocks)]
    return "".join(
        f'node_filesystem_{what}_bytes{{mountpoint="/var/lib/postgresql"}} {count * disk.f_frsize}\n'
        for what, count in lines
    ).encode()


class Outside(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b"", kind="text/plain"):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/metrics":
            self.answer(200, room())
        elif has("issuer-away"):
            self.answer(503)
        else:
            with open(os.path.join(FOLDER, "jwks.json"), "rb") as file:
                self.answer(200, file.read(), "application/json")

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", "0")))
        if self.path == "/token":
            self.answer(503)
        else:
            self.answer(410 if has("service-gone") else 200)

    def log_message(self, *_):
        pass


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(os.path.join(FOLDER, "outside.pem"), os.path.join(FOLDER, "outside.key"))
server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Outside)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
