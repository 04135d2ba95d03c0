"""A client that streams one text after the other, and notes when events come.

Greedy texts of the tiny model have no halves of characters, so each token is an event: a gap is the server's,
and not that of a text that is not whole yet.

python -m tests.serve_fuzz.free_stream HOST PORT; ends with its standard input, and then prints the gaps in ms.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

TOKENS = 3_500  # of a text
_ASKED = {
    "prompt": "once upon a time",
    "max_tokens": TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
}


def main() -> int:
    """Read until nobody listens; each line is when an event came, and how long after the one before."""
    content = json.dumps(_ASKED).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nconnection: close\r\n"
    )
    while True:
        with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
            connection.sendall(head + b"content-length: %d\r\n\r\n" % len(content) + content)
            last_s = None
            while data := connection.recv(1 << 16):
                now_s = time.monotonic()
                if last_s is not None:
                    print(f"{now_s:.6f} {now_s - last_s:.6f}", flush=False)
                last_s = now_s
                if b"[DONE]" in data:
                    break
                if select.select([sys.stdin], [], [], 0)[0]:
                    return 0


if __name__ == "__main__":
    sys.exit(main())
