"""A server on FastMCP that has one of everything; it speaks both eras."""

import sys

import asyncio
from typing import Literal

import mcp.types as types
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from pydantic import BaseModel

NAMES = ["alpha", "beta", "gamma"]
server = FastMCP("peer-fastmcp", version="1.0.0", instructions="One of everything, “quoted”: 读🎉é")


class Sum(BaseModel):
    sum: float


class Question(BaseModel):
    yes: bool


@server.tool(title="Add")
def add(a: float, b: float) -> Sum:
    """Adds two numbers."""
    return Sum(sum=a + b)


@server.tool
def echo(text: str) -> str:
    return text


@server.tool
def fail() -> str:
    raise ToolError("it did not work")


@server.tool
async def logs(ctx: Context) -> str:
    await ctx.info("began", logger_name="peer", extra={"step": 1})
    await ctx.warning("nearly done", logger_name="peer")
    return "logged"


@server.tool
async def count(steps: int, ctx: Context) -> str:
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step}")
    return f"counted to {steps}"


@server.tool
async def slow(ms: int, ctx: Context) -> str:
    # Says that the work has begun, so that a client knows when to cancel.
    await ctx.report_progress(1)
    await asyncio.sleep(ms / 1000)
    return "slept"


def sampling_params() -> types.CreateMessageRequestParams:
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="say hi"))
    return types.CreateMessageRequestParams(messages=[message], max_tokens=10)


@server.tool
async def ask(what: Literal["form", "sampling", "roots"], ctx: Context) -> str | types.InputRequiredResult:
    if ctx._is_modern_protocol():
        if ctx.input_responses is None:
            form = types.ElicitRequestFormParams(message="Go on?", requested_schema=Question.model_json_schema())
            request = {
                "form": lambda: types.ElicitRequest(params=form),
                "sampling": lambda: types.CreateMessageRequest(params=sampling_params()),
                "roots": lambda: types.ListRootsRequest(),
            }[what]()
            return types.InputRequiredResult(input_requests={"answer": request}, request_state=f"state-{what}-é")
        return f"{what}: {ctx.input_responses['answer']}"
    if what == "form":
        return f"form: {await ctx.elicit('Go on?', Question)}"
    if what == "sampling":
        params = sampling_params()
        return f"sampling: {await ctx.session.create_message(params.messages, max_tokens=params.max_tokens)}"
    return f"roots: {await ctx.session.list_roots()}"


@server.tool
async def touch(uri: str, ctx: Context) -> str:
    params = types.ResourceUpdatedNotificationParams(uri=uri)
    await ctx.send_notification(types.ResourceUpdatedNotification(params=params))
    return "touched"


@server.tool
async def grow(ctx: Context) -> str:
    server.tool(lambda: "new", name=f"grown-{len(await server.list_tools())}")
    await ctx.send_notification(types.ToolListChangedNotification())
    return "grew"


@server.resource("note://readme", title="Read me", mime_type="text/plain")
def readme() -> str:
    return "line one\nline two\u2028still two"


@server.resource("note://blob", mime_type="application/octet-stream")
def blob() -> bytes:
    return bytes([0, 1, 2, 255])


@server.resource("item://{name}", mime_type="text/plain")
def item(name: str) -> str:
    return f"item {name}"


@server.prompt(title="Greet")
def greet(name: str) -> str:
    return f"Greet {name}"


@server.completion
async def complete(ref, argument, context):
    return [name for name in NAMES if name.startswith(argument.value)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run("http", port=int(sys.argv[2]), show_banner=False, log_level="ERROR")
    else:
        server.run(show_banner=False, log_level="ERROR")
