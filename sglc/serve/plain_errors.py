"""Errors in plain text, from the libraries that stand before our endpoints, become errors as all others are."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglc.serve.problems import as_response, of_text


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
                    refusal = of_text(head["status"], text.decode("utf-8", "replace"))
                    body = as_response(refusal, scope["path"]).body
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
