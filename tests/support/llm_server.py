"""A service of chat completions and embeddings, as a process of its own: real HTTP, answers by a rule, and faults.

`python llm_server.py --log FILE [...]` prints its port and serves until it is killed. It reads what it is asked as a
model would: the passages between their marks, by number. Its rule: a passage is relevant to a question, and useful for
an answer, if it shares a word of at least four letters with the question; the longest passage is the most useful.

Every request is a line of FILE: `asked` when it came, `answered` when a chat completion is sent to
a reader that is still there.
Faults strike by shares of the requests, drawn by the seed; a request sent again is drawn for again.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import os
import random
import re
import socket
import struct
import sys
import time
from typing import Any, NamedTuple

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


def vector_of(text: str, width: int, length: float) -> list[float]:
    """A vector of the letters of a text."""
    numbers = [0.01] * width
    for letter in text.encode():
        numbers[letter % width] += 1
    norm = sum(number * number for number in numbers) ** 0.5
    return [number / norm * length for number in numbers]


class Peer(NamedTuple):
    """Client of the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


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

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, path, _ = first.split(" ", 2)
                if not await self.handle(method, path, headers, body, Peer(reader, writer)):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def handle(self, method: str, path: str, headers: dict[str, str], body: bytes, peer: Peer) -> bool:
        """Answer one request; whether the connection stays open."""
        options = self.options
        if options.key and headers.get("authorization") != f"Bearer {options.key}":
            said = f"Incorrect API key provided: {headers.get('authorization', '')}"
            return await self.send(peer, 401, {"error": {"message": said, "code": "invalid_api_key"}})
        if method == "GET" and path == "/v1/models" and not options.no_models:
            return await self.send(peer, 200, {"object": "list", "data": [{"id": options.model, "object": "model"}]})
        if method == "POST" and path == "/v1/hold":  # a test's word, no part of the protocol
            self.open.clear()
            return await self.send(peer, 200, {"answered": self.answered})
        if method != "POST" or path not in ("/v1/chat/completions", "/v1/embeddings"):
            return await self.send(peer, 404, {"detail": "Not Found"})
        asked = json.loads(body)
        if path == "/v1/embeddings":
            asked["messages"] = asked["input"]
        digest = hashlib.sha256(json.dumps(asked["messages"], sort_keys=True).encode()).hexdigest()
        self.note("asked", digest)
        if asked["model"] != options.model:
            error = {"message": f"The model `{asked['model']}` does not exist.", "code": "model_not_found"}
            return await self.send(peer, 404, {"error": error})
        for name in options.refuses.split(","):
            if name and (name in asked or name == asked.get("response_format", {}).get("type")):
                said = f"Unsupported parameter: '{name}' is not supported"
                said += ". Use 'max_completion_tokens' instead." if name == "max_tokens" else ": response_format."
                said = "'temperature' is not supported" if name == "temperature" else said
                return await self.send(peer, 400, {"error": {"message": said, "param": name}})
        if options.filters and options.filters in body.decode():
            return await self.send(peer, 400, {"error": {"message": "blocked by the content filter"}})
        if "input" in asked and (refusal := self.refusal(asked["input"])):
            return await self.send(peer, 400, {"error": {"message": refusal}})
        return await self.answer(asked, digest, peer)

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
        mode, width = self.options.broken, asked.get("dimensions", self.options.width)
        if mode == "widens" and self.embedded:
            width *= 2
        vectors = [vector_of(text, width, self.options.length) for text in asked["input"]]
        is_first = not self.embedded  # the width is asked for first
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
                "embedding": base64.b64encode(struct.pack(f"<{len(one)}f", *one)).decode()
                if asked.get("encoding_format") == "base64"
                else one,
            }
            for number, one in enumerate(vectors)
        ]
        body: dict[str, Any] = {"object": "list", "data": rows[::-1], "model": asked["model"]}
        if not self.options.no_usage:
            body["usage"] = {"prompt_tokens": sum(map(tokens_of, asked["input"]))}
        return "<html>busy</html>" if mode == "html" and not is_first else body

    async def answer(self, asked: dict[str, Any], digest: str, peer: Peer) -> bool:
        fault = self.fault()
        if fault == "stall":
            await asyncio.sleep(3600)
        if fault == "busy":
            status = {"error": {"message": "Rate limit reached"}}
            return await self.send(peer, 429, status, {"Retry-After": str(self.options.retry_after)})
        await asyncio.sleep(self.options.service_time)
        if fault == "error":
            return await self.send(peer, 500, {"error": {"message": "internal"}})
        if fault == "drop":
            # Half an answer, then a reset.
            peer.writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"choi')
            await peer.writer.drain()
            reset = struct.pack("ii", 1, 0)
            peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            return False
        if fault == "garbage":
            return await self.send(peer, 200, self.draw.choice([{"choices": []}, ["?"], {"error": "busy"}, "<html>"]))
        if "input" in asked:
            result = self.embeddings(asked)
            await self.open.wait()
            return await self.send(peer, 200, result, digest=digest, texts=asked["input"])
        content = json.dumps(answer_to(asked["messages"]))
        if self.options.wrapped:
            content = f'<think>maybe {{"relevant": [1]}}?</think>\nHere you are:\n```json\n{content}\n```\nDone.'
        if fault == "nonsense":
            content = self.draw.choice(NONSENSE)
        read = sum(len(message["content"].encode()) for message in asked["messages"]) // 4
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        body: dict[str, Any] = {"id": digest[:8], "object": "chat.completion", "choices": [choice]}
        if not self.options.no_usage:
            body["usage"] = {"prompt_tokens": read, "completion_tokens": len(content) // 4}
        await self.open.wait()
        return await self.send(peer, 200, body, digest=digest)

    async def send(
        self,
        peer: Peer,
        status: int,
        body: Any,
        more: dict[str, str] | None = None,
        digest: str | None = None,
        texts: list[str] | None = None,
    ) -> bool:
        raw = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(raw)), **(more or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        # Only an answer whose reader is still there is one.
        if digest is not None and not (peer.writer.is_closing() or peer.reader.at_eof()):
            self.answered += 1
            self.note("answered", digest)
            for text in texts or ():
                self.note("text", text)
        peer.writer.write(f"HTTP/1.1 {status} Replied\r\n{lines}\r\n".encode() + raw)
        await peer.writer.drain()
        return True


async def serve(options: argparse.Namespace) -> None:
    server = Server(options)
    listening = await asyncio.start_server(server.connection, "127.0.0.1", options.port, limit=1 << 24, backlog=512)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


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
    parser.add_argument("--width", type=int, default=24, help="components of an embedding")
    parser.add_argument("--length", type=float, default=1.0, help="length of an embedding")
    parser.add_argument("--longest", type=int, default=10**9, help="characters of the longest text to embed")
    parser.add_argument("--most-texts", type=int, default=10**9, help="texts of the largest request")
    parser.add_argument("--broken", default="", help="embeddings from the second request on: fewer, ragged, nan...")
    parser.add_argument("--no-usage", action="store_true")
    parser.add_argument("--no-models", action="store_true")
    for name in FAULTS:
        parser.add_argument(f"--{name}", type=float, default=0.0, help="share of the requests")
    options = parser.parse_args()
    try:
        asyncio.run(serve(options))
    except KeyboardInterrupt:
        os._exit(0)
    sys.exit(0)


if __name__ == "__main__":
    main()
