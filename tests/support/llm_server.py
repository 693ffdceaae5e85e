"""A service of chat completions and embeddings, as a process of its own: real HTTP, answers by a rule, and faults.

`python llm_server.py --log FILE [...]` prints its port and serves until it is killed. It reads what it is asked as a
model would: the passages between their marks, by number. Its rule: a passage is relevant to a question, and useful for
an answer, if it shares a word of at least four letters with the question; the longest passage is the most useful.

Every request is a line of FILE: `asked` when it came, `answered` when a chat completion is sent to
a reader that is still there.
Faults strike by fractions of the requests, drawn by the seed; a request sent again is drawn for again."""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import random
import re
import socket
import struct
import time
from typing import Any

from aiohttp import web

PASSAGE = re.compile(r"<passage number=(\d+) seal=(\w+)>\n(.*?)\n</passage seal=\2>", re.DOTALL)
QUESTION = re.compile(r"<question seal=(\w+)>\n(.*?)\n</question seal=\1>", re.DOTALL)
FAULTS = ("drop", "stall", "busy", "error", "garbage", "nonsense")
NONSENSE = (
    "I would rather not say.",
    '{"relevant": [999], "useful": [0], "answer": 5}',
    '{"relevant": "1", "useful": {"1": true}, "answer": ""}',
    '{"relevant": [1',
)


def words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) >= 4}


def answer_to(messages: list[dict[str, str]]) -> dict[str, Any]:
    """What the model answers to the first message of its user."""
    said = next(message["content"] for message in messages if message["role"] == "user")
    question = QUESTION.search(said)
    assert question is not None
    passages = {int(number): text for number, _, text in PASSAGE.findall(said)}
    fits = [number for number, text in passages.items() if words(text) & words(question[2])]
    if '{"relevant"' in said:
        return {"relevant": fits}
    if '{"useful"' in said:
        return {"useful": sorted(fits, key=lambda number: (-len(passages[number]), number))}
    return {"answer": f"It is said: {passages[min(passages)][:200]}"}


def tokens_of(text: str) -> int:
    return len(text.encode()) // 4 + 1


def vector_of(text: str, dim: int, length: float) -> list[float]:
    """A vector of the letters of a text."""
    numbers = [0.01] * dim
    for letter in text.encode():
        numbers[letter % dim] += 1
    norm = sum(number * number for number in numbers) ** 0.5
    return [number / norm * length for number in numbers]


class Server:
    """What the process does; see the module."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.draw = random.Random(options.seed)
        self.log = open(options.log, "a", buffering=1)  # noqa: SIM115
        self.answered = self.embedded = 0
        self.open = asyncio.Event()
        self.open.set()

    def note(self, event: str, digest: str) -> None:
        self.log.write(json.dumps({"event": event, "digest": digest, "at": time.time()}) + "\n")

    def fault(self) -> str | None:
        drawn = self.draw.random()
        for name in FAULTS:
            drawn -= getattr(self.options, name)
            if drawn < 0:
                return name
        return None

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one request."""
        options, headers = self.options, request.headers
        if options.key and headers.get("Authorization") != f"Bearer {options.key}":
            said = f"Incorrect API key provided: {headers.get('Authorization', '')}"
            return error(401, said, code="invalid_api_key")
        if (request.method, request.path) == ("GET", "/v1/models") and not options.no_models:
            return web.json_response({"object": "list", "data": [{"id": options.model, "object": "model"}]})
        if (request.method, request.path) == ("POST", "/v1/hold"):  # a test's word, no part of the protocol
            self.open.clear()
            return web.json_response({"answered": self.answered})
        if request.method != "POST" or request.path not in ("/v1/chat/completions", "/v1/embeddings"):
            return web.json_response({"detail": "Not Found"}, status=404)
        body = await request.text()
        asked = json.loads(body)
        if request.path == "/v1/embeddings":
            asked["messages"] = asked["input"]
        digest = hashlib.sha256(json.dumps(asked["messages"], sort_keys=True).encode()).hexdigest()
        self.note("asked", digest)
        if asked["model"] != options.model:
            return error(404, f"The model `{asked['model']}` does not exist.", code="model_not_found")
        for name in options.refuses.split(","):
            if name and (name in asked or name == asked.get("response_format", {}).get("type")):
                said = f"Unsupported parameter: '{name}' is not supported"
                said += ". Use 'max_completion_tokens' instead." if name == "max_tokens" else ": response_format."
                said = "'temperature' is not supported" if name == "temperature" else said
                return error(400, said, param=name)
        if options.filters and options.filters in body:
            return error(400, "blocked by the content filter")
        if "input" in asked and (refusal := self.refusal(asked["input"])):
            return error(400, refusal)
        return await self.answer(asked, digest, request)

    def refusal(self, texts: list[str]) -> str:
        """Why a request for embeddings is refused; empty if it is not."""
        if len(texts) > self.options.most_texts:
            return f"batch size {len(texts)} > maximum allowed batch size {self.options.most_texts}"
        longest = max(map(len, texts))
        if longest > self.options.longest:
            return f"the maximum context length is {self.options.longest} tokens, you requested {longest}"
        return ""

    def embeddings(self, asked: dict[str, Any]) -> Any:
        """The answer to a request for embeddings, in the state of the flags."""
        mode, dim = self.options.broken, asked.get("dimensions", self.options.dim)
        if mode == "widens" and self.embedded:
            dim *= 2
        vectors = [vector_of(text, dim, self.options.length) for text in asked["input"]]
        is_first = not self.embedded  # the dimension is asked for first
        self.embedded += len(vectors)
        if mode == "fewer" and not is_first:
            vectors.pop()
        if mode == "ragged" and not is_first:
            vectors[-1] = vectors[-1][:-1]
        if mode == "nan" and not is_first:
            vectors[-1][0] = float("nan")
        rows = [
            {
                "index": number,
                "embedding": base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
                if asked.get("encoding_format") == "base64"
                else vector,
            }
            for number, vector in enumerate(vectors)
        ]
        body: dict[str, Any] = {"object": "list", "data": rows[::-1], "model": asked["model"]}
        if not self.options.no_usage:
            body["usage"] = {"prompt_tokens": sum(map(tokens_of, asked["input"]))}
        return "<html>busy</html>" if mode == "html" and not is_first else body

    async def answer(self, asked: dict[str, Any], digest: str, request: web.Request) -> web.Response:
        fault = self.fault()
        if fault == "stall":
            await asyncio.sleep(3600)
        if fault == "busy":
            return error(429, "Rate limit reached", {"Retry-After": str(self.options.retry_after)})
        await asyncio.sleep(self.options.service_time)
        if fault == "error":
            return error(500, "internal")
        if fault == "drop":
            # Half an answer, then a reset; the whole answer below reaches nobody.
            assert request.transport is not None
            reset = struct.pack("ii", 1, 0)
            request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            request.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{")  # type: ignore[attr-defined]
            request.transport.abort()  # type: ignore[attr-defined]
        if fault == "garbage":
            return web.json_response(self.draw.choice([{"choices": []}, ["?"], {"error": "busy"}, "<html>"]))
        if "input" in asked:
            body, texts = self.embeddings(asked), asked["input"]
        else:
            body, texts = self.completion(asked, digest, fault == "nonsense"), []
        await self.open.wait()
        # Only an answer whose reader is still there is one.
        if request.transport is not None and not request.transport.is_closing():
            self.answered += 1
            self.note("answered", digest)
            for text in texts:
                self.note("text", text)
        return web.json_response(body)

    def completion(self, asked: dict[str, Any], digest: str, is_nonsense: bool) -> dict[str, Any]:
        """The answer to a request for a chat completion."""
        content = json.dumps(answer_to(asked["messages"]))
        if self.options.wrapped:
            content = f'<think>maybe {{"relevant": [1]}}?</think>\nHere you are:\n```json\n{content}\n```\nDone.'
        if is_nonsense:
            content = self.draw.choice(NONSENSE)
        read = sum(len(message["content"].encode()) for message in asked["messages"]) // 4
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        body: dict[str, Any] = {"id": digest[:8], "object": "chat.completion", "choices": [choice]}
        if not self.options.no_usage:
            body["usage"] = {"prompt_tokens": read, "completion_tokens": len(content) // 4}
        return body


def error(status: int, message: str, headers: dict[str, str] | None = None, **more: str) -> web.Response:
    return web.json_response({"error": {"message": message, **more}}, status=status, headers=headers)


async def serve(options: argparse.Namespace) -> None:
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", Server(options).handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", options.port, backlog=512).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="judge")
    parser.add_argument("--key", default="")
    parser.add_argument("--service-time", type=float, default=0.0, help="seconds")
    parser.add_argument("--retry-after", type=float, default=0.2, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--refuses", default="", help="parameters that are answered 400, separated by commas")
    parser.add_argument("--filters", default="", help="a text that no request may hold")
    parser.add_argument("--wrapped", action="store_true", help="answers stand in a fence, after a thought")
    parser.add_argument("--dim", type=int, default=24, help="components of an embedding")
    parser.add_argument("--length", type=float, default=1.0, help="length of an embedding")
    parser.add_argument("--longest", type=int, default=10**9, help="characters of the longest text to embed")
    parser.add_argument("--most-texts", type=int, default=10**9, help="texts of the largest request")
    parser.add_argument("--broken", default="", help="embeddings from the second request on: fewer, ragged, nan...")
    parser.add_argument("--no-usage", action="store_true")
    parser.add_argument("--no-models", action="store_true")
    for name in FAULTS:
        parser.add_argument(f"--{name}", type=float, default=0.0, help="fraction of the requests")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
