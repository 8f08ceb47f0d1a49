// A server on the official TypeScript SDK v2 that has one of everything.
// usage: node server-ts.mjs legacy|modern|both [http PORT]
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { Readable } from 'node:stream';
import {
  McpServer, ResourceTemplate, WebStandardStreamableHTTPServerTransport, acceptedContent, completable, createMcpHandler,
  inputRequired,
} from '@modelcontextprotocol/server';
import { StdioServerTransport, serveStdio } from '@modelcontextprotocol/server/stdio';
import * as z from 'zod';

const era = process.argv[2] ?? 'both';
const text = value => ({ content: [{ type: 'text', text: value }] });
const names = ['alpha', 'beta', 'gamma'];
const question = z.object({ yes: z.boolean() });

// Over modern HTTP each request has a server of its own: what one changes, all must know.
let notifier;
const grown = [];

function build() {
  const server = new McpServer(
    { name: 'peer-ts', version: '1.0.0', title: 'Peer — TypeScript' },
    {
      capabilities: {
        logging: {}, tools: { listChanged: true }, prompts: { listChanged: true },
        resources: { subscribe: true, listChanged: true }, completions: {}, experimental: { 'vendor/x': { n: 1 } },
      },
      instructions: 'One of everything, “quoted”, in UTF‑8: 读🎉é',
    },
  );

  server.registerTool('add', {
    title: 'Add', description: 'Adds two numbers',
    inputSchema: z.object({ a: z.number(), b: z.number() }), outputSchema: z.object({ sum: z.number() }),
    annotations: { readOnlyHint: true, idempotentHint: true }, _meta: { 'vendor/note': ['kept', null, 1.5] },
  }, ({ a, b }) => ({ ...text(String(a + b)), structuredContent: { sum: a + b } }));

  server.registerTool('echo', { inputSchema: z.object({ text: z.string() }) }, ({ text: said }) => text(said));

  server.registerTool('fail', { inputSchema: z.object({}) }, () => ({ ...text('it did not work'), isError: true }));

  server.registerTool('logs', { inputSchema: z.object({}) }, async (_args, ctx) => {
    await ctx.mcpReq.log('info', { step: 1, text: 'began' }, 'peer');
    await ctx.mcpReq.log('warning', 'nearly done', 'peer');
    return text('logged');
  });

  server.registerTool('count', { inputSchema: z.object({ steps: z.number() }) }, async ({ steps }, ctx) => {
    const progressToken = ctx.mcpReq._meta?.progressToken;
    for (let step = 1; step <= steps && progressToken !== undefined; step++) {
      await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress: step, total: steps, message: `step ${step}` } });
    }
    return text(`counted to ${steps}`);
  });

  server.registerTool('slow', { inputSchema: z.object({ ms: z.number() }) }, ({ ms }, ctx) => new Promise(resolve => {
    const timer = setTimeout(() => resolve(text('slept')), ms);
    ctx.mcpReq.signal.addEventListener('abort', () => { clearTimeout(timer); resolve(text('cancelled')); });
    // Says that the work has begun, so that a client knows when to cancel.
    const progressToken = ctx.mcpReq._meta?.progressToken;
    if (progressToken !== undefined) void ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress: 1 } });
  }));

  // Written once for both eras: on a legacy connection the SDK turns the requests into messages to the client.
  server.registerTool('ask', { inputSchema: z.object({ what: z.enum(['form', 'sampling', 'roots']) }) }, async ({ what }, ctx) => {
    const given = ctx.mcpReq.inputResponses;
    if (!given) {
      const request = {
        form: () => inputRequired.elicit({ message: 'Go on?', requestedSchema: question }),
        sampling: () => inputRequired.createMessage({ messages: [{ role: 'user', content: { type: 'text', text: 'say hi' } }], maxTokens: 10 }),
        roots: () => inputRequired.listRoots(),
      }[what]();
      return inputRequired({ inputRequests: { answer: request }, requestState: `state-${what}-é` });
    }
    if (what === 'form') return text(`form: ${JSON.stringify(acceptedContent(given, 'answer', question))}`);
    return text(`${what}: ${JSON.stringify(given.answer)} state: ${JSON.stringify(ctx.mcpReq.requestState())}`);
  });

  server.registerTool('touch', { inputSchema: z.object({ uri: z.string() }) }, async ({ uri }) => {
    if (notifier) notifier.resourceUpdated(uri);
    else await server.server.sendResourceUpdated({ uri });
    return text('touched');
  });

  const growNew = name => server.registerTool(name, { inputSchema: z.object({}) }, () => text('new'));
  server.registerTool('grow', { inputSchema: z.object({}) }, () => {
    grown.push(`grown-${grown.length + 1}`);
    growNew(grown.at(-1));
    notifier?.toolsChanged();
    return text('grew');
  });
  grown.forEach(growNew);

  server.registerResource('readme', 'note://readme', { title: 'Read me', mimeType: 'text/plain' },
    uri => ({ contents: [{ uri: uri.href, mimeType: 'text/plain', text: 'line one\nline two\u2028still two' }] }));
  server.registerResource('blob', 'note://blob', { mimeType: 'application/octet-stream' },
    uri => ({ contents: [{ uri: uri.href, blob: Buffer.from([0, 1, 2, 255]).toString('base64') }] }));
  server.registerResource('item', new ResourceTemplate('item://{name}', {
    list: undefined, complete: { name: value => names.filter(name => name.startsWith(value)) },
  }), { mimeType: 'text/plain' }, (uri, { name }) => ({ contents: [{ uri: uri.href, text: `item ${name}` }] }));

  server.registerPrompt('greet', {
    title: 'Greet', argsSchema: z.object({ name: completable(z.string(), value => names.filter(name => name.startsWith(value))) }),
  }, ({ name }) => ({ messages: [{ role: 'user', content: { type: 'text', text: `Greet ${name}` } }] }));

  server.server.setRequestHandler('resources/subscribe', () => ({}));
  server.server.setRequestHandler('resources/unsubscribe', () => ({}));
  return server;
}

// A handler of web requests behind the HTTP server of Node.
function serveHttp(handle, port) {
  createServer(async (incoming, outgoing) => {
    const gone = new AbortController();
    outgoing.on('close', () => gone.abort());
    const chunks = await incoming.toArray();
    const body = chunks.length > 0 ? Buffer.concat(chunks) : undefined;
    const { method, headers } = incoming;
    const request = new Request(`http://127.0.0.1:${port}${incoming.url}`, { method, headers, body, signal: gone.signal });
    const response = await handle(request);
    outgoing.writeHead(response.status, Object.fromEntries(response.headers));
    outgoing.flushHeaders();
    if (!response.body) return outgoing.end();
    Readable.fromWeb(response.body).on('error', () => outgoing.destroy()).pipe(outgoing);
  }).listen(port, '127.0.0.1', () => console.error('listening'));
}

// Legacy sessions, each with a server of its own.
const sessions = new Map();
async function legacyHttp(request) {
  const known = request.headers.get('mcp-session-id');
  if (known) return sessions.get(known)?.handleRequest(request) ?? new Response(null, { status: 404 });
  const transport = new WebStandardStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID, onsessioninitialized: id => { sessions.set(id, transport); },
  });
  await build().connect(transport);
  return transport.handleRequest(request);
}

const port = process.argv[3] === 'http' ? Number(process.argv[4]) : undefined;
if (port && era === 'legacy') serveHttp(legacyHttp, port);
else if (port) {
  const handler = createMcpHandler(build, { legacy: era === 'modern' ? 'reject' : 'stateless' });
  notifier = handler.notify;
  serveHttp(request => handler.fetch(request), port);
} else if (era === 'legacy') await build().connect(new StdioServerTransport());
else serveStdio(build, { legacy: era === 'modern' ? 'reject' : 'serve' });
