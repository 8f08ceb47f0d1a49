// The official TypeScript client driving a fixed session over stdio.
// usage: node client.mjs SESSION -- COMMAND...
// Sessions: full-legacy, full-modern, full-auto (probes, falls back), everything, filesystem DIR.
// It says on stderr what it did and exits 0 only if every step went as expected. What crosses the wire is written down
// by `testpeer tap` in front of COMMAND.
import { Client, ProtocolError } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import assert from 'node:assert/strict';
import path from 'node:path';

const split = process.argv.indexOf('--');
const [session, ...extra] = process.argv.slice(2, split);
const [command, ...args] = process.argv.slice(split + 1);
let legacy = true;
const mode = { 'full-modern': { pin: '2026-07-28' }, 'full-auto': 'auto' }[session] ?? 'legacy';

/** Collects notifications; `next` waits for the one that `wanted` accepts, however early it came. */
class Inbox {
  #seen = [];
  #waiting = [];
  push(notification) {
    this.#seen.push(notification);
    for (const waiting of this.#waiting) waiting();
  }
  async next(method, ms = 10_000) {
    const until = Date.now() + ms;
    for (;;) {
      const at = this.#seen.findIndex(notification => notification.method === method);
      if (at >= 0) return this.#seen.splice(at, 1)[0];
      const left = until - Date.now();
      if (left <= 0) throw new Error(`no ${method} within ${ms} ms`);
      await new Promise(resolve => {
        const timer = setTimeout(resolve, left);
        this.#waiting.push(() => { clearTimeout(timer); resolve(); });
      });
      this.#waiting = [];
    }
  }
}

const inbox = new Inbox();
const asked = [];
const client = new Client(
  { name: 'peer-client-ts', version: '1.0.0', title: 'Client — é' },
  { capabilities: { sampling: {}, elicitation: { form: {} }, roots: { listChanged: true } }, versionNegotiation: { mode } },
);
client.fallbackNotificationHandler = async notification => inbox.push(notification);
for (const method of ['notifications/message', 'notifications/resources/updated', 'notifications/tools/list_changed',
  'notifications/resources/list_changed', 'notifications/prompts/list_changed']) {
  client.setNotificationHandler(method, notification => inbox.push(notification));
}
client.setRequestHandler('elicitation/create', request => {
  asked.push(request.method);
  const wanted = Object.entries(request.params.requestedSchema?.properties ?? {});
  const value = schema => schema.default ?? schema.enum?.[0] ?? schema.oneOf?.[0]?.const
    ?? { boolean: true, string: 'text', integer: 3, number: 3.5, array: [] }[schema.type];
  return { action: 'accept', content: Object.fromEntries(wanted.filter(([, schema]) => !schema.format).map(([name, schema]) => [name, value(schema)])) };
});
client.setRequestHandler('sampling/createMessage', request => {
  asked.push(request.method);
  return { role: 'assistant', model: 'none', stopReason: 'endTurn', content: { type: 'text', text: 'hi — 🎉' } };
});
client.setRequestHandler('roots/list', request => {
  asked.push(request.method);
  return { roots: [{ uri: `file://${extra[0] ?? '/srv/a%20b'}`, name: 'work' }] };
});

const tool = (name, given = {}, options) => client.callTool({ name, arguments: given, ...(legacy ? {} : { _meta: { 'io.modelcontextprotocol/logLevel': 'debug' } }) }, options);
const said = result => result.content.map(part => part.text).join('|');

/** Waits until something that a handler of ours does has happened. */
async function until(happened) {
  const end = Date.now() + 10_000;
  while (!happened()) {
    assert.ok(Date.now() < end, 'nothing happened within 10 s');
    await new Promise(resolve => setTimeout(resolve, 5));
  }
}

/** Lets a step fail with an error of the server: the frame is compared, not the client's opinion of it. */
async function refused(step) {
  try {
    return await step;
  } catch (error) {
    assert.ok(error instanceof ProtocolError, error);
    return undefined;
  }
}

/** Runs a call with progress and gives what came. */
async function withProgress(name, given, options = {}) {
  const progress = [];
  const result = await tool(name, given, { onprogress: step => progress.push(step.progress), ...options });
  return { result, progress };
}

/** This client drops progress that came in the same read as the answer, so the last steps may be missing, or all. */
function rising(progress) {
  assert.deepEqual(progress, [1, 2, 3, 4].slice(0, progress.length));
}

/** Calls, cancels as soon as the server says that it began, and expects the cancel as the end. */
async function cancelled(name, given) {
  const abort = new AbortController();
  await assert.rejects(tool(name, given, { signal: abort.signal, onprogress: () => abort.abort('no longer needed') }), /no longer needed|abort/i);
}

async function full() {
  const { tools } = await client.listTools();
  assert.ok(tools.some(one => one.name === 'add'));
  assert.deepEqual((await tool('add', { a: 1, b: 2.5 })).structuredContent?.sum ?? 3.5, 3.5);
  assert.match(said(await tool('echo', { text: 'grüße 读🎉 \u2028 "\\ \u0000' })), /grüße/);
  assert.equal((await tool('fail')).isError, true);
  await refused(tool('nope'));
  await refused(tool('add', { a: 'no number' }));

  if (legacy) await refused(client.setLoggingLevel('debug'));
  await tool('logs');
  await inbox.next('notifications/message');
  await inbox.next('notifications/message');

  const counted = await withProgress('count', { steps: 4 });
  rising(counted.progress);
  await cancelled('slow', { ms: 60_000 });
  await tool('slow', { ms: 1 });

  for (const what of ['form', 'sampling', 'roots']) assert.match(said(await tool('ask', { what })), new RegExp(what));
  assert.deepEqual(asked, ['elicitation/create', 'sampling/createMessage', 'roots/list']);

  await client.listResources();
  await client.listResourceTemplates();
  await client.readResource({ uri: 'note://readme' });
  await client.readResource({ uri: 'note://blob' });
  await client.readResource({ uri: 'item://beta' });
  await refused(client.readResource({ uri: 'note://missing' }));
  await client.listPrompts();
  await client.getPrompt({ name: 'greet', arguments: { name: 'alpha' } });
  await refused(client.getPrompt({ name: 'missing' }));
  await client.complete({ ref: { type: 'ref/prompt', name: 'greet' }, argument: { name: 'name', value: 'a' } });
  await client.complete({ ref: { type: 'ref/resource', uri: 'item://{name}' }, argument: { name: 'name', value: 'g' } });

  // A modern server tells only those who listen, and not every server lets one.
  const open = legacy ? undefined : await refused(client.listen({ toolsListChanged: true, resourceSubscriptions: ['note://readme'] }));
  if (legacy) await refused(client.subscribeResource({ uri: 'note://readme' }));
  await tool('touch', { uri: 'note://readme' });
  if (legacy || open) await inbox.next('notifications/resources/updated');
  await tool('grow');
  if (legacy || open) await inbox.next('notifications/tools/list_changed');
  await client.listTools();
  if (legacy) await refused(client.unsubscribeResource({ uri: 'note://readme' }));
  await open?.close();

  // Many at once: answers may overtake each other, so each is compared on its own.
  await Promise.all([5, 4, 3, 2, 1].flatMap(n => [withProgress('count', { steps: n }), tool('add', { a: n, b: 1e21 }), tool('slow', { ms: n })]));
  if (legacy) {
    await client.sendRootsListChanged();
    await client.ping();
  }
}

async function everything() {
  const { tools } = await client.listTools();
  const known = new Set(tools.map(one => one.name));
  const call = async (name, given, options) => { if (known.has(name)) return tool(name, given, options); process.stderr.write(`no tool ${name}\n`); return undefined; };
  await call('echo', { message: 'grüße 读🎉' });
  await call('get-sum', { a: 2, b: 3 });
  await call('get-structured-content', { location: 'New York' });
  await call('get-tiny-image');
  await call('get-annotated-message', { messageType: 'error', includeImage: true });
  await call('get-resource-links', { count: 3 });
  await call('get-resource-reference', { resourceType: 'Text', resourceId: 1 });
  await call('get-roots-list');
  const long = await withProgress('trigger-long-running-operation', { duration: 0.4, steps: 4 });
  rising(long.progress);
  await call('trigger-sampling-request', { prompt: 'hello', maxTokens: 5 });
  await call('trigger-elicitation-request');
  await cancelled('trigger-long-running-operation', { duration: 2, steps: 4 });
  await client.listResources();
  await client.listResourceTemplates();
  await client.readResource({ uri: 'demo://resource/dynamic/text/1' });
  await client.readResource({ uri: 'demo://resource/dynamic/blob/2' });
  await client.subscribeResource({ uri: 'demo://resource/dynamic/text/1' });
  await client.unsubscribeResource({ uri: 'demo://resource/dynamic/text/1' });
  const { prompts } = await client.listPrompts();
  for (const prompt of prompts) {
    const given = Object.fromEntries((prompt.arguments ?? []).map(argument => [argument.name, { department: 'Engineering', name: 'Alice', resourceType: 'Text', resourceId: '1' }[argument.name] ?? 'x']));
    await refused(client.getPrompt({ name: prompt.name, arguments: given }));
  }
  await client.complete({ ref: { type: 'ref/prompt', name: 'completable-prompt' }, argument: { name: 'department', value: 'E' } });
  await client.setLoggingLevel('error');
  const rooted = asked.length;
  await client.sendRootsListChanged();
  // The server asks for them again; only then may the session end.
  await until(() => asked.length > rooted);
  await client.ping();
}

async function filesystem() {
  const dir = extra[0];
  const at = name => path.join(dir, name);
  await client.listTools();
  await tool('list_allowed_directories');
  await tool('write_file', { path: at('a.txt'), content: 'one\ntwo\n\u2028 é\n' });
  await tool('read_text_file', { path: at('a.txt') });
  await tool('read_text_file', { path: at('a.txt'), head: 1 });
  await tool('edit_file', { path: at('a.txt'), edits: [{ oldText: 'two', newText: 'zwei' }] });
  await tool('create_directory', { path: at('sub') });
  await tool('move_file', { source: at('a.txt'), destination: at('sub/b.txt') });
  await tool('list_directory', { path: dir });
  await tool('directory_tree', { path: dir });
  await tool('search_files', { path: dir, pattern: '**/*.txt' });
  await tool('get_file_info', { path: at('sub/b.txt') });
  await tool('read_multiple_files', { paths: [at('sub/b.txt'), at('missing')] });
  assert.equal((await tool('read_text_file', { path: at('../outside') })).isError, true);
  const big = 'x'.repeat(400_000);
  await tool('write_file', { path: at('big.txt'), content: big });
  assert.equal(said(await tool('read_text_file', { path: at('big.txt') })).length, big.length);
}

try {
  await client.connect(new StdioClientTransport({ command, args, stderr: 'inherit', env: process.env }));
  legacy = client.getProtocolEra() !== 'modern';
  process.stderr.write(`client: ${client.getProtocolEra()} ${client.getNegotiatedProtocolVersion()}\n`);
  const drive = { 'full-legacy': full, 'full-modern': full, 'full-auto': full, everything, filesystem }[session];
  assert.ok(drive, `no session ${session}`);
  await drive();
  await client.close();
} catch (error) {
  process.stderr.write(`client: ${error.stack}\n`);
  process.exitCode = 1;
  await client.close().catch(() => {});
}
