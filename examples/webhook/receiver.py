"""Receives webhooks and prints each once, if it was signed by who has the secret. Nothing but Python's own library."""
import base64
import hashlib
import hmac
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))
SEEN = set()
LOCK = threading.Lock()


def is_genuine(headers, body):
    message, sent_at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    # An old message may be one that somebody has recorded.
    if not sent_at.isdigit() or abs(time.time() - int(sent_at)) > 300:
        return False
    wanted = hmac.new(KEY, f"{message}.{sent_at}.".encode() + body, hashlib.sha256).digest()
    signatures = [part[3:] for part in headers.get("webhook-signature", "").split(" ") if part.startswith("v1,")]
    return any(hmac.compare_digest(base64.b64encode(wanted).decode(), signature) for signature in signatures)


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        genuine = is_genuine(self.headers, body)
        with LOCK:
            # The same message may come twice: its id tells.
            if genuine and self.headers["webhook-id"] not in SEEN:
                SEEN.add(self.headers["webhook-id"])
                print(json.dumps(json.loads(body)), flush=True)
        self.send_response(204 if genuine else 401)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0), Receiver)
print(f"listening on port {server.server_port}", file=sys.stderr, flush=True)
server.serve_forever()
