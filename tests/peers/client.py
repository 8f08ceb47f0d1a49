"""The official Python client driving a fixed session over stdio.

usage: client.py SESSION -- COMMAND...
Sessions: full-legacy, full-modern, full-auto (probes, falls back).
It exits 0 only if every step went as expected. What crosses the wire is written down by `testpeer tap` in front of COMMAND.
"""

import os
import sys
import warnings
from collections import Counter

import anyio
from mcp import Client, StdioServerParameters, types
from mcp.shared.exceptions import MCPError

warnings.simplefilter("ignore")  # This client calls what the newest revision deprecates, on purpose.

MODES = {"full-legacy": "legacy", "full-modern": "2026-07-28", "full-auto": "auto"}


class Inbox:
    """Counts notifications by method; `wait` returns when there was one more than was waited for."""

    def __init__(self):
        self.seen = Counter()
        self.waited = Counter()
        self.event = anyio.Event()

    async def push(self, message):
        self.seen[getattr(message, "method", type(message).__name__)] += 1
        self.event.set()
        self.event = anyio.Event()

    async def wait(self, method):
        self.waited[method] += 1
        with anyio.fail_after(10):
            while self.seen[method] < self.waited[method]:
                await self.event.wait()


asked = []


async def on_sampling(context, params):
    asked.append("sampling")
    content = types.TextContent(type="text", text="hi — 🎉")
    return types.CreateMessageResult(role="assistant", model="none", stop_reason="endTurn", content=content)


async def on_form(context, params):
    asked.append("form")
    return types.ElicitResult(action="accept", content={"yes": True})


async def on_roots(context):
    asked.append("roots")
    return types.ListRootsResult(roots=[types.Root(uri="file:///srv/a%20b", name="work")])


async def refused(awaitable):
    """Lets a step fail with an error from the server: the frame is compared, not the opinion."""
    try:
        return await awaitable
    except MCPError as error:
        return error


async def full(client, inbox, modern):
    tools = (await client.list_tools()).tools
    assert "add" in [tool.name for tool in tools], tools
    assert "3.5" in str((await client.call_tool("add", {"a": 1, "b": 2.5})).structured_content)
    assert "grüße" in str(await client.call_tool("echo", {"text": 'grüße 读🎉 \u2028 "\\ \u0001'}))
    assert (await client.call_tool("fail")).is_error
    await refused(client.call_tool("nope"))
    await refused(client.call_tool("add", {"a": "no number"}))
    if not modern:
        await refused(client.set_logging_level("debug"))
    await client.call_tool("logs")

    steps = []

    async def on_progress(progress, total, message):
        steps.append(progress)

    await client.call_tool("count", {"steps": 4}, progress_callback=on_progress)
    assert steps == sorted(steps), steps
    async with anyio.create_task_group() as group:
        begun = anyio.Event()

        async def on_begun(progress, total, message):
            begun.set()

        async def endless():
            await client.call_tool("slow", {"ms": 60_000}, progress_callback=on_begun)

        group.start_soon(endless)
        with anyio.fail_after(10):
            await begun.wait()
        group.cancel_scope.cancel()
    await client.call_tool("slow", {"ms": 1})

    for what in ("form", "sampling", "roots"):
        result = await client.call_tool("ask", {"what": what})
        assert not result.is_error, result
    assert asked == ["form", "sampling", "roots"], asked

    await client.list_resources()
    await client.list_resource_templates()
    await client.read_resource("note://readme")
    await client.read_resource("note://blob")
    await client.read_resource("item://beta")
    await refused(client.read_resource("note://missing"))
    await client.list_prompts()
    await client.get_prompt("greet", {"name": "alpha"})
    await refused(client.get_prompt("missing"))
    await refused(client.complete(types.PromptReference(name="greet"), {"name": "name", "value": "a"}))
    await refused(client.complete(types.ResourceTemplateReference(uri="item://{name}"), {"name": "name", "value": "g"}))

    if modern:
        # A modern server tells only those who listen, and not every server lets one.
        try:
            async with client.listen(tools_list_changed=True, resource_subscriptions=["note://readme"]) as events:
                await client.call_tool("touch", {"uri": "note://readme"})
                await client.call_tool("grow")
                with anyio.fail_after(10):
                    for _expected in range(2):
                        await anext(events)
        except MCPError as error:
            assert error.code == -32601, error
    else:
        await refused(client.subscribe_resource("note://readme"))
        await client.call_tool("touch", {"uri": "note://readme"})
        await inbox.wait("notifications/resources/updated")
        await client.call_tool("grow")
        await inbox.wait("notifications/tools/list_changed")
        await refused(client.unsubscribe_resource("note://readme"))
    await client.list_tools()

    # Many at once: answers may overtake each other, so each is compared on its own.
    async with anyio.create_task_group() as group:
        for n in (5, 4, 3, 2, 1):
            group.start_soon(lambda n=n: client.call_tool("count", {"steps": n}, progress_callback=on_progress))
            group.start_soon(lambda n=n: client.call_tool("add", {"a": n, "b": 1e21}))
            group.start_soon(lambda n=n: client.call_tool("slow", {"ms": n}))
    if not modern:
        await client.send_roots_list_changed()
        await client.send_ping()


async def main():
    split = sys.argv.index("--")
    session = sys.argv[1:split][0]
    command, *args = sys.argv[split + 1 :]
    inbox = Inbox()
    client = Client(
        StdioServerParameters(command=command, args=args, env=dict(os.environ)),
        mode=MODES[session],
        client_info=types.Implementation(name="peer-client-python", version="1.0.0", title="Client — é"),
        sampling_callback=on_sampling,
        elicitation_callback=on_form,
        list_roots_callback=on_roots,
        message_handler=inbox.push,
        log_level="debug",
    )
    async with client:
        print(f"client: {client.protocol_version}", file=sys.stderr)
        with anyio.fail_after(45):
            await full(client, inbox, client.protocol_version >= "2026-07-28")


if __name__ == "__main__":
    anyio.run(main)
