// SPDX-License-Identifier: Apache-2.0
// The official OpenAI client for JavaScript against a server on Sapling:
//   node --test-reporter=spec openai_client_test.mjs ESPALIER MODEL MODULES
// MODULES is the folder that npm installed the client into. openai_client_test.py is the same list in Python.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

const [binary, modelDirectory, modules] = process.argv.slice(2);
const OpenAI = createRequire(resolve(modules, "package.json"))("openai");

const KEY = "sk-test";
const PROMPT = "def clamp(value, low, high):";
const MESSAGES = [
  { role: "system", content: "You write Python." },
  { role: "user", content: "Write a loop." },
];
// 64 outputs of 1,900 tokens: minutes of work on any CPU, so what is cancelled cannot have finished by itself.
const ENDLESS = { max_tokens: 1900, n: 64, ignore_eos: true };

class Server {
  static started = []; // a test that fails leaves its server, and node would wait for it
  static async start(...flags) {
    const server = new Server();
    Server.started.push(server);
    server.process = spawn(binary, ["serve", modelDirectory, "--port", "0", ...flags],
                           { stdio: ["ignore", "inherit", "pipe"] });
    server.exited = new Promise((done) => server.process.once("exit", done));
    await new Promise((ready, failed) => {
      const log = createInterface({ input: server.process.stderr });
      log.on("line", (line) => {
        const found = line.match(/listening on (http:\/\/\S+)/);
        if (found) server.root = found[1];
        if (line.includes("is ready")) ready();
      });
      log.once("close", () => failed(new Error("the server ended before it was ready")));
    });
    return server;
  }
  stop() {
    this.process.kill("SIGTERM");
    return this.exited;
  }
  client() {
    return new OpenAI({ baseURL: `${this.root}/v1`, apiKey: KEY, maxRetries: 0 });
  }
  async metric(name) {
    const answer = await fetch(`${this.root}/metrics`, { headers: { Authorization: `Bearer ${KEY}` } });
    const text = await answer.text();
    return [...text.matchAll(new RegExp(`^espalier:${name}\\{.*\\} (\\S+)$`, "gm"))]
      .reduce((sum, found) => sum + Number(found[1]), 0);
  }
  async idle() {
    for (let i = 0; i < 3000; ++i) {
      if (await this.metric("num_requests_running") + await this.metric("num_requests_waiting") === 0) return;
      await sleep(20);
    }
    assert.fail("requests ran on");
  }
}

let server, client, model;
const complete = (more = {}, options = {}, by = client) =>
  by.completions.create({ model, prompt: PROMPT, max_tokens: 24, seed: 3, ...more }, options);
const chat = (more = {}) =>
  client.chat.completions.create({ model, messages: MESSAGES, max_tokens: 24, seed: 3, ...more });
async function collect(stream) {
  const chunks = [];
  for await (const chunk of await stream) chunks.push(chunk);
  return chunks;
}
const textOf = (chunks) => chunks.map((chunk) => chunk.choices[0].text).join("");

before(async () => {
  server = await Server.start("--api-key", KEY);
  client = server.client();
  model = (await client.models.list()).data[0].id;
});
after(async () => {
  const status = await server.stop();
  for (const left of Server.started) left.process.kill("SIGKILL");
  assert.equal(status, 0);
});

test("models", async () => {
  assert.equal((await client.models.retrieve(model)).object, "model");
});

test("chat", async () => {
  const whole = await chat();
  assert.deepEqual([whole.object, whole.model], ["chat.completion", model]);
  assert.equal(whole.choices[0].message.role, "assistant");
  assert.ok(whole.choices[0].message.content);
  assert.ok(["stop", "length"].includes(whole.choices[0].finish_reason));
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
});

test("completions", async () => {
  const whole = await complete();
  assert.equal(whole.object, "text_completion");
  assert.ok(whole.choices[0].text);
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
  const several = await complete({ prompt: [PROMPT, PROMPT] });
  assert.deepEqual(several.choices.map((choice) => choice.index), [0, 1]);
});

test("chat streams to the same text", async () => {
  const whole = (await chat()).choices[0];
  const chunks = await collect(chat({ stream: true }));
  assert.equal(chunks[0].choices[0].delta.role, "assistant");
  assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), whole.message.content);
  assert.equal(chunks.at(-1).choices[0].finish_reason, whole.finish_reason);
  assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
});

test("chat streams through the client's own accumulator", async () => {
  const whole = (await chat()).choices[0];
  const runner = client.chat.completions.stream({ model, messages: MESSAGES, max_tokens: 24, seed: 3 });
  assert.equal(await runner.finalContent(), whole.message.content);
});

test("completions stream to the same text", async () => {
  const whole = (await complete()).choices[0];
  const chunks = await collect(complete({ stream: true }));
  assert.equal(textOf(chunks), whole.text);
  assert.equal(chunks.at(-1).choices[0].finish_reason, whole.finish_reason);
});

test("the last chunk has the usage", async () => {
  for (const request of [chat, complete]) {
    const { usage } = await request();
    const chunks = await collect(request({ stream: true, stream_options: { include_usage: true } }));
    const last = chunks.pop();
    assert.deepEqual(last.choices, []);
    assert.equal(last.usage.prompt_tokens, usage.prompt_tokens);
    assert.equal(last.usage.completion_tokens, usage.completion_tokens);
    assert.ok(chunks.every((chunk) => chunk.usage === null));
  }
});

test("logprobs of chats", async () => {
  const choice = (await chat({ logprobs: true, top_logprobs: 3 })).choices[0];
  const tokens = choice.logprobs.content;
  assert.equal(tokens.map((token) => token.token).join(""), choice.message.content);
  for (const token of tokens) {
    assert.ok(token.logprob <= 0);
    assert.equal(token.top_logprobs.length, 3);
  }
  const chunks = await collect(chat({ logprobs: true, top_logprobs: 3, stream: true }));
  assert.deepEqual(chunks.flatMap((chunk) => chunk.choices[0].logprobs?.content ?? []), tokens);
});

test("logprobs of completions", async () => {
  const { logprobs } = (await complete({ logprobs: 2 })).choices[0];
  assert.equal(logprobs.tokens.length, logprobs.token_logprobs.length);
  const scored = (await complete({ max_tokens: 0, echo: true, logprobs: 1 })).choices[0];
  assert.equal(scored.text, PROMPT);
  assert.equal(scored.logprobs.token_logprobs[0], null);
});

test("stop", async () => {
  const { text } = (await complete()).choices[0];
  const stop = text.slice(text.length / 2, text.length / 2 + 2);
  const stopped = (await complete({ stop: ["never in it \0", stop] })).choices[0];
  assert.deepEqual([stopped.text, stopped.finish_reason], [text.slice(0, text.indexOf(stop)), "stop"]);
  assert.equal(textOf(await collect(complete({ stop, stream: true }))), stopped.text);
});

test("n", async () => {
  const { choices } = await chat({ n: 3 });
  assert.deepEqual(choices.map((choice) => choice.index), [0, 1, 2]);
  const texts = ["", "", ""];
  for (const chunk of await collect(chat({ n: 3, stream: true })))
    for (const choice of chunk.choices) texts[choice.index] += choice.delta.content ?? "";
  assert.deepEqual(texts, choices.map((choice) => choice.message.content));
});

test("errors are the client's own", async () => {
  await assert.rejects(chat({ temperature: -1 }), (error) =>
    error instanceof OpenAI.BadRequestError && error.param === "temperature" && error.type === "invalid_request_error");
  await assert.rejects(chat({ tools: [{ type: "function", function: { name: "f" } }] }), (error) =>
    error instanceof OpenAI.BadRequestError && error.param === "tools");
  await assert.rejects(complete({ prompt: "x = 1\n".repeat(4000) }), (error) =>
    error instanceof OpenAI.BadRequestError && error.message.includes("2048"));
  await assert.rejects(chat({ stream: true, messages: [] }), OpenAI.BadRequestError);
  await assert.rejects(chat({ model: "gpt-4" }), OpenAI.NotFoundError);
  await assert.rejects(client.withOptions({ apiKey: "sk-other" }).models.list(), OpenAI.AuthenticationError);
});

// Bounded on all sides, so that a text without sense comes to its end.
const PERSON = {
  type: "object",
  properties: {
    name: { type: "string", enum: ["Ann", "Bob"] },
    age: { type: "integer", minimum: 0, maximum: 99 },
    tags: { type: "array", items: { type: "string", enum: ["a", "b"] }, maxItems: 2 },
  },
  required: ["name", "age", "tags"],
  additionalProperties: false,
};
const DONE = { type: "object", properties: { well: { type: "boolean" } }, required: ["well"], additionalProperties: false };

function checkPerson(person) {
  assert.deepEqual(Object.keys(person), ["name", "age", "tags"]);
  assert.ok(["Ann", "Bob"].includes(person.name));
  assert.ok(Number.isInteger(person.age) && person.age >= 0 && person.age <= 99);
  assert.ok(person.tags.length <= 2);
}

test("structured output", async () => {
  const format = { type: "json_schema", json_schema: { name: "person", schema: PERSON, strict: true } };
  for (const seed of [0, 1, 2]) {
    const request = { response_format: format, max_tokens: 1000, temperature: 1, seed };
    const { choices: [choice] } = await chat(request);
    assert.equal(choice.finish_reason, "stop");
    checkPerson(JSON.parse(choice.message.content));
    const final = await client.chat.completions.stream({ model, messages: MESSAGES, ...request }).finalChatCompletion();
    assert.equal(final.choices[0].message.content, choice.message.content);
  }
  const bad = { type: "json_schema", json_schema: { name: "n", schema: { type: "object", uniqueNonsense: true } } };
  await assert.rejects(chat({ response_format: bad }), (error) =>
    error instanceof OpenAI.BadRequestError && error.param === "response_format.json_schema.schema" &&
    error.message.includes("uniqueNonsense"));
});

test("tool calls", async () => {
  const folder = await mkdtemp(join(tmpdir(), "espalier-"));
  const template = join(folder, "template.jinja");
  await writeFile(template, "{% for tool in tools or [] %}{{ tool.function | tojson }}{% endfor %}{% for message in messages %}" +
    "[{{ message.role }}]{{ message.content or '' }}{% endfor %}[assistant]");
  const calling = await Server.start("--chat-template", template, "--tool-format", "deepseek_v3");
  const by = calling.client();
  const tools = [["person", PERSON], ["done", DONE]].map(([name, parameters]) =>
    ({ type: "function", function: { name, parameters, strict: true } }));
  const check = ({ name, arguments: text }) => {
    const made = JSON.parse(text);
    if (name === "person") checkPerson(made);
    else assert.equal(typeof made.well, "boolean");
  };
  const request = { model, messages: MESSAGES, tools, tool_choice: "required", max_tokens: 1000, temperature: 1 };
  for (const seed of [0, 1, 2]) {
    const single = { ...request, seed, parallel_tool_calls: false };
    const { choices: [choice] } = await by.chat.completions.create(single);
    assert.equal(choice.finish_reason, "tool_calls");
    assert.equal(choice.message.tool_calls.length, 1);
    const [{ function: call }] = choice.message.tool_calls;
    check(call);
    const final = await by.chat.completions.stream(single).finalChatCompletion();
    const [{ function: { name, arguments: text } }] = final.choices[0].message.tool_calls;
    assert.deepEqual({ name, arguments: text }, call);
  }
  let most = 0;
  for (let seed = 0; seed < 8; ++seed) {
    const { choices: [choice] } = await by.chat.completions.create({ ...request, seed });
    const calls = choice.message.tool_calls;
    const streamed = [];
    for (const chunk of await collect(by.chat.completions.create({ ...request, seed, stream: true })))
      for (const call of chunk.choices[0].delta.tool_calls ?? []) {
        if (call.index === streamed.length) streamed.push({ name: call.function.name, arguments: "" });
        streamed[call.index].arguments += call.function.arguments;
      }
    assert.deepEqual(streamed, calls.map((call) => call.function));
    if (choice.finish_reason === "length") calls.pop(); // it was cut off
    else assert.equal(choice.finish_reason, "tool_calls");
    for (const call of calls) check(call.function);
    most = Math.max(most, calls.length);
  }
  assert.ok(most > 1, "no seed gave parallel calls");
  assert.equal(await calling.stop(), 0);
  await rm(folder, { recursive: true });
});

test("a full queue is a rate limit", async () => {
  const small = await Server.start("--rows", "1", "--max-waiting", "1");
  const endless = { ...ENDLESS, n: 1, stream: true };
  const running = await complete(endless, {}, small.client());
  await running[Symbol.asyncIterator]().next(); // it has the row, which the engine tells when the step is over
  while (await small.metric("num_requests_waiting") > 0) await sleep(10);
  const waiting = await complete(endless, {}, small.client());
  await assert.rejects(complete({}, {}, small.client()), (error) =>
    error instanceof OpenAI.RateLimitError && Number(error.headers.get("retry-after")) > 0);
  waiting.controller.abort();
  running.controller.abort();
  await small.idle();
  assert.ok((await complete({}, {}, small.client())).choices[0].text);
  assert.equal(await small.stop(), 0);
});

test("a stream that the server ends is an error", async () => {
  const ending = await Server.start("--drain-seconds", "0");
  const stream = await complete({ ...ENDLESS, stream: true }, {}, ending.client());
  const chunks = stream[Symbol.asyncIterator]();
  await chunks.next();
  const stopped = ending.stop();
  await assert.rejects(async () => {
    while (!(await chunks.next()).done);
  }, (error) => error instanceof OpenAI.APIError && !(error instanceof OpenAI.APIConnectionError));
  assert.equal(await stopped, 0);
});

test("a stream that is left is cancelled", async () => {
  const before = await server.metric("requests_cancelled_total");
  for await (const _ of await complete({ ...ENDLESS, stream: true })) break;
  await server.idle();
  assert.ok(await server.metric("requests_cancelled_total") > before);
});

test("a call that is aborted is cancelled", async () => {
  const before = await server.metric("requests_cancelled_total");
  const aborting = new AbortController();
  const call = complete(ENDLESS, { signal: aborting.signal });
  const refused = assert.rejects(call, OpenAI.APIUserAbortError);
  while (await server.metric("num_requests_running") === 0) await sleep(10);
  aborting.abort();
  await refused;
  await server.idle();
  assert.ok(await server.metric("requests_cancelled_total") > before);
});

test("many at once", async () => {
  // 64 calls of four kinds at a time; each has the text that it has alone.
  const alone = [];
  for (let seed = 0; seed < 4; ++seed) alone.push((await complete({ seed, max_tokens: 12 })).choices[0].text);
  await Promise.all(Array.from({ length: 64 }, async (_, number) => {
    const call = { seed: number % 4, max_tokens: 12 };
    const text = number % 8 < 4 ? (await complete(call)).choices[0].text
                                : textOf(await collect(complete({ ...call, stream: true })));
    assert.equal(text, alone[number % 4]);
  }));
});
