"""A server whose every latency is known: it computes nothing, and streams tokens at set times.

    python paced_server.py PORT TTFT_MS GAP_MS

Each answer's first token comes TTFT_MS after the request, each other GAP_MS after the one before,
by a schedule: what is late does not make the next one later.  POST /stall?s=0.5 stops everything.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from aiohttp import web


async def complete(request: web.Request) -> web.StreamResponse:
    arrived = time.perf_counter()
    body = await request.json()
    ttft_s, gap_s = request.app["pace"]
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    chat, count = "messages" in body, body["max_tokens"]
    if chat:  # as some servers do, long before there is a token
        await answer.write(event([{"delta": {"role": "assistant", "content": ""}}]))
    for number in range(count):
        await asyncio.sleep(arrived + ttft_s + number * gap_s - time.perf_counter())
        end = "length" if number == count - 1 else None
        text = {"delta": {"content": " a"}} if chat else {"text": " a"}
        await answer.write(event([{"index": 0, **text, "finish_reason": end}]))
    prompt = body.get("prompt") or body["messages"][0]["content"]
    length = len(prompt.split() if isinstance(prompt, str) else prompt)
    usage = {"prompt_tokens": length, "completion_tokens": count}
    await answer.write(event([], usage))
    await answer.write(b"data: [DONE]\n\n")
    return answer


def event(choices: list[dict[str, object]], usage: dict[str, int] | None = None) -> bytes:
    chunk = {"id": "cmpl-0", "object": "text_completion", "choices": choices, "usage": usage}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def models(_: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "paced"}]})


async def stall(request: web.Request) -> web.Response:
    time.sleep(float(request.query["s"]))
    return web.Response()


def make_app(ttft_s: float, gap_s: float) -> web.Application:
    app = web.Application()
    app["pace"] = (ttft_s, gap_s)
    app.router.add_post("/v1/completions", complete)
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_post("/stall", stall)
    app.router.add_get("/v1/models", models)
    return app


if __name__ == "__main__":
    port, ttft_ms, gap_ms = map(float, sys.argv[1:])
    app = make_app(ttft_ms / 1e3, gap_ms / 1e3)
    web.run_app(app, host="127.0.0.1", port=int(port), print=None)
