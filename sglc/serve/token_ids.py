"""`POST /tokenize` and `/detokenize`: what the model reads of a text or a conversation, and back."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from sglc.serve.bodies import ChatBody, DetokenizeBody, TokenizeBody
from sglc.serve.direct import Endpoints
from sglc.serve.limits import check_counts, check_lists, check_sizes
from sglc.serve.problems import as_json
from sglc.serve.prompts import at_once_or_apart, encoded, of_chat
from sglc.serve.service import Service, check_model, prompts_of


def add_token_ids(app: FastAPI, service: Service) -> Endpoints:
    """Have `app` answer them."""
    tokenizer, limits = service.tokenizer, service.limits

    @app.post("/tokenize")
    async def tokenize(body: TokenizeBody, request: Request) -> Response:
        check_model(service, body.model)
        if body.messages is not None:
            check_lists(limits, {"messages": body.messages}, service.max_len)
            texts = [turn.content for turn in body.messages]
            check_sizes(["".join(texts)], "messages", service.max_len, limits.characters)
            chat = ChatBody(messages=body.messages, add_generation_prompt=body.add_generation_prompt)
            found = [list((await at_once_or_apart(texts, of_chat, tokenizer, chat)).ids)]
        else:
            texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
            check_counts(limits, texts, "prompt", 1)
            check_sizes(texts, "prompt", service.max_len, limits.characters)
            made = await at_once_or_apart(texts, encoded, tokenizer, texts, body.add_special_tokens)
            found = [list(ids) for ids in made]
        several = isinstance(body.prompt, list)
        return as_json(
            {
                "tokens": found if several else found[0],
                "count": [len(ids) for ids in found] if several else len(found[0]),
                "max_model_len": service.max_len,
            }
        )

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeBody, request: Request) -> Response:
        check_model(service, body.model)
        if not body.tokens:  # which are no prompt
            return as_json({"text": "", "prompt": ""})
        (prompt,) = await prompts_of(service, [body.tokens], "tokens")
        return as_json({"text": prompt.text, "prompt": prompt.text})  # SGLang's name, and vLLM's

    return {"/tokenize": (TokenizeBody, tokenize), "/detokenize": (DetokenizeBody, detokenize)}
