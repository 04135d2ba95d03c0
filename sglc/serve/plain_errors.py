"""Errors in plain text, from the libraries that stand before our endpoints, become OpenAI's error object."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglc.serve.problems import Refusal, as_response

# What they say begins with this; the code, and what we say.
_SAID = {
    "Invalid host header": ("unknown_host", "the server is not asked by this name"),
    "Disallowed CORS origin": ("origin_not_allowed", "pages of this origin may not ask"),
    "Content Too Large": ("body_too_large", "the body is larger than the server takes"),
}


def refusal_of_text(status: int, text: str) -> Refusal:
    """What a plain text says."""
    for begin, (code, message) in _SAID.items():
        if text.startswith(begin):
            return Refusal(status, message, code=code)
    return Refusal(status, text or "the request cannot be answered", code="bad_request")


def in_one_form(app: ASGIApp) -> ASGIApp:
    """`app`, its errors in plain text as all others are. Their other headers stay: a browser reads them."""

    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        head: Message | None = None
        text = bytearray()

        async def speak(message: Message) -> None:
            nonlocal head
            if message["type"] == "http.response.start" and _is_plain_error(message):
                head = message
            elif head is None:
                await send(message)
            else:
                text.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    body = as_response(refusal_of_text(head["status"], text.decode("utf-8", "replace"))).body
                    kept = [each for each in head["headers"] if not each[0].startswith(b"content-")]
                    described = [
                        (b"content-type", b"application/json"),
                        (b"content-length", b"%d" % len(body)),
                    ]
                    await send({**head, "headers": kept + described})
                    await send({"type": "http.response.body", "body": body})

        await app(scope, receive, speak)

    return answering


def _is_plain_error(head: Message) -> bool:
    kind: bytes = dict(head["headers"]).get(b"content-type", b"")
    return bool(head["status"] >= 400) and kind.startswith(b"text/plain")
