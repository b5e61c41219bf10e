// The package `@anthropic-ai/sdk`, unmodified, against a running `sluice serve`:
//
//     anthropic.mjs FOLDER URL KEY     FOLDER has its node_modules
//
// The exit code is not zero if something is not as its clients expect.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [folder, baseURL, apiKey] = process.argv.slice(2);
const Anthropic = createRequire(`${folder}/package.json`)("@anthropic-ai/sdk").default;
const client = new Anthropic({ baseURL, apiKey, maxRetries: 0, timeout: 120_000 });

const user = { role: "user", content: "Tell a tale of the sea." };
const ask = { model: "tale", max_tokens: 24, temperature: 0, messages: [user] };
const tide = {
  name: "tide",
  input_schema: {
    type: "object", additionalProperties: false, required: ["at"],
    properties: { at: { enum: ["noon", "dawn"] } },
  },
};

const whole = await client.messages.create(ask);
assert.equal(whole.stop_reason, "max_tokens");
const streamed = await client.messages.stream(ask).finalMessage();
assert.deepEqual(streamed.content, whole.content);

// Raw events, as tools that read the stream themselves see them.
const kinds = [];
for await (const event of await client.messages.create({ ...ask, stream: true })) kinds.push(event.type);
assert.equal(kinds[0], "message_start");
assert.equal(kinds.at(-1), "message_stop");

const calling = client.messages.stream({
  ...ask, max_tokens: 200, tools: [tide], tool_choice: { type: "tool", name: "tide" },
});
let pieces = 0;
calling.on("inputJson", () => { pieces += 1; });
const called = await calling.finalMessage();
const call = called.content.find((block) => block.type === "tool_use");
assert.ok(["noon", "dawn"].includes(call.input.at) && pieces > 0);
const result = { type: "tool_result", tool_use_id: call.id, content: "low" };
const next = await client.messages.create({
  ...ask, tools: [tide],
  messages: [user, { role: "assistant", content: called.content }, { role: "user", content: [result] }],
});
assert.ok(next.usage.input_tokens > 0);

const counted = await client.messages.countTokens({ model: "tale", messages: [user] });
assert.equal(counted.input_tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens);
const models = await client.models.list();
assert.equal(models.data[0].id, "tale");

await assert.rejects(client.messages.create({ ...ask, temperature: -1 }), Anthropic.BadRequestError);
await assert.rejects(client.messages.create({ ...ask, model: "claude" }), Anthropic.NotFoundError);
const stranger = new Anthropic({ baseURL, apiKey: "another", maxRetries: 0 });
await assert.rejects(stranger.messages.create(ask), Anthropic.AuthenticationError);

// A client that leaves early leaves nothing behind.
const left = await client.messages.create({ ...ask, max_tokens: 1000, stream: true });
for await (const event of left) if (event.type === "content_block_delta") break;
console.log("ok      @anthropic-ai/sdk");
