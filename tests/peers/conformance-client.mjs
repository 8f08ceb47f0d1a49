// A client for the official conformance suite: it reaches the suite's server through a relay on stdio.
// usage: MCPRELAY=<binary> node conformance-client.mjs URL   (the suite adds the URL and says in the environment what to do)
import { Client } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const url = process.argv.at(-1);
const scenario = process.env.MCP_CONFORMANCE_SCENARIO;
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? '{}');
const modern = (process.env.MCP_CONFORMANCE_PROTOCOL_VERSION ?? '2025-11-25') >= '2026-07-28';

const client = new Client({ name: 'conformance-client', version: '1.0.0' }, {
  capabilities: { elicitation: { form: { applyDefaults: true } }, sampling: {}, roots: { listChanged: true } },
  versionNegotiation: { mode: modern ? 'auto' : 'legacy' },
});
client.setRequestHandler('elicitation/create', () => ({ action: 'accept', content: {} }));
client.setRequestHandler('sampling/createMessage', () => ({ role: 'assistant', model: 'none', content: { type: 'text', text: 'hi' } }));
client.setRequestHandler('roots/list', () => ({ roots: [] }));
const transport = new StdioClientTransport({
  command: process.env.MCPRELAY, args: ['run', '--http', url], stderr: 'inherit', env: { ...process.env },
});
await client.connect(transport);
const { tools } = await client.listTools();
const call = (name, args = {}) => client.callTool({ name, arguments: args });

const drive = {
  tools_call: () => call('add_numbers', { a: 5, b: 3 }),
  'http-standard-headers': async () => {
    for (const { name } of tools) await call(name);
    const { resources } = await client.listResources();
    for (const { uri } of resources) await client.readResource({ uri });
    const { prompts } = await client.listPrompts();
    for (const { name } of prompts) await client.getPrompt({ name, arguments: {} });
  },
  'http-custom-headers': async () => {
    for (const { name, arguments: args } of context.toolCalls) await call(name, args);
  },
  'http-invalid-tool-headers': async () => {
    // Whatever the relay offers is called.
    for (const { name, inputSchema } of tools) {
      const args = Object.fromEntries(Object.keys(inputSchema.properties ?? {}).map(key => [key, 'x']));
      await call(name, args).catch(error => console.error(`${name}: ${error.message}`));
    }
  },
  'sep-2322-client-request-state': async () => {
    for (const { name } of tools) await call(name).catch(error => console.error(`${name}: ${error.message}`));
  },
  'json-schema-2020-12-preservation': async () => {
    const focal = tools.find(({ name }) => name !== 'json_schema_echo');
    await call('json_schema_echo', { schema: focal.inputSchema });
  },
  'elicitation-sep1034-client-defaults': async () => {
    for (const { name } of tools) await call(name);
  },
  'sse-retry': async () => {
    for (const { name } of tools) await call(name);
  },
}[scenario];
await drive?.();
await client.close();
