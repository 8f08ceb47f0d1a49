"""A server on the official Python SDK that has one of everything; it speaks both eras."""

import sys

from typing import Literal

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import (
    CallToolResult,
    Completion,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel

NAMES = ["alpha", "beta", "gamma"]
MODERN = "2026-07-28"
mcp = MCPServer("peer-python", version="1.0.0", instructions="One of everything, “quoted”: 读🎉é", log_level="ERROR")


class Sum(BaseModel):
    sum: float


class Question(BaseModel):
    yes: bool


@mcp.tool(title="Add")
def add(a: float, b: float) -> Sum:
    """Adds two numbers."""
    return Sum(sum=a + b)


@mcp.tool()
def echo(text: str) -> str:
    return text


@mcp.tool()
def fail() -> str:
    raise ValueError("it did not work")


@mcp.tool()
async def logs(ctx: Context) -> str:
    await ctx.log("info", {"step": 1, "text": "began"}, logger_name="peer")
    await ctx.log("warning", "nearly done", logger_name="peer")
    return "logged"


@mcp.tool()
async def count(steps: int, ctx: Context) -> str:
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step}")
    return f"counted to {steps}"


@mcp.tool()
async def slow(ms: int, ctx: Context) -> str:
    # Says that the work has begun, so that a client knows when to cancel.
    await ctx.report_progress(1)
    await anyio.sleep(ms / 1000)
    return "slept"


def sampling_params() -> CreateMessageRequestParams:
    message = SamplingMessage(role="user", content=TextContent(type="text", text="say hi"))
    return CreateMessageRequestParams(messages=[message], max_tokens=10)


@mcp.tool()
async def ask(what: Literal["form", "sampling", "roots"], ctx: Context) -> CallToolResult | InputRequiredResult:
    if ctx.protocol_version is not None and ctx.protocol_version >= MODERN:
        if ctx.input_responses is None:
            form = ElicitRequestFormParams(message="Go on?", requested_schema=Question.model_json_schema())
            request = {
                "form": lambda: ElicitRequest(params=form),
                "sampling": lambda: CreateMessageRequest(params=sampling_params()),
                "roots": lambda: ListRootsRequest(),
            }[what]()
            return InputRequiredResult(input_requests={"answer": request}, request_state=f"state-{what}-é")
        given = str(ctx.input_responses["answer"])
    elif what == "form":
        given = str(await ctx.elicit("Go on?", Question))
    elif what == "sampling":
        params = sampling_params()
        given = str(await ctx.session.create_message(params.messages, max_tokens=params.max_tokens))
    else:
        given = str(await ctx.session.list_roots())
    return CallToolResult(content=[TextContent(type="text", text=f"{what}: {given}")])


@mcp.tool()
async def touch(uri: str, ctx: Context) -> str:
    await ctx.notify_resource_updated(uri)
    await ctx.session.send_resource_updated(uri)
    return "touched"


@mcp.tool()
async def grow(ctx: Context) -> str:
    mcp.add_tool(lambda: "new", name=f"grown-{len(await mcp.list_tools())}")
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()
    return "grew"


@mcp.resource("note://readme", title="Read me", mime_type="text/plain")
def readme() -> str:
    return "line one\nline two\u2028still two"


@mcp.resource("note://blob", mime_type="application/octet-stream")
def blob() -> bytes:
    return bytes([0, 1, 2, 255])


@mcp.resource("item://{name}", mime_type="text/plain")
def item(name: str) -> str:
    return f"item {name}"


@mcp.prompt(title="Greet")
def greet(name: str) -> str:
    return f"Greet {name}"


@mcp.completion()
async def complete(ref, argument, context):
    return Completion(values=[name for name in NAMES if name.startswith(argument.value)])


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        mcp.run("streamable-http", port=int(sys.argv[2]))
    else:
        mcp.run()
