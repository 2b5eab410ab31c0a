// OpenAI's official npm client, unmodified, against the embedded deployment: chat with sound, a text said, models,
// errors, an end. Version 6, which runs on Node.js 20; 7 asks for 22 (`engines` in its package.json).

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { after, before, describe, test } from "node:test";

import OpenAI from "openai";

import { launched, until } from "./deployment.mjs";

const QUESTION = [{ role: "user", content: "What is the capital of France?" }];
const ANSWER = "The capital of France is Paris.";
const SPOKEN = { model: "embedded", messages: QUESTION, modalities: ["text", "audio"], seed: 0 };
const STORY = { ...SPOKEN, messages: [{ role: "user", content: "Tell me a long story." }] };
const BEGINS = { wav: "RIFF", flac: "fLaC", opus: "OggS", mp3: "\xff\xf3" }; // of MP3: a frame of MPEG-2, layer III, as 24 kHz are

function clientOf(deployment, options = {}) {
  return new OpenAI({ baseURL: `${deployment.url}/v1`, apiKey: "none", maxRetries: 0, ...options });
}

/** What a stream's chunks say of the sound, joined as clients do. */
async function joined(stream) {
  const all = { id: "", data: "", transcript: "" };
  let reason = null;
  let usage = null;
  for await (const chunk of stream) {
    const [choice] = chunk.choices;
    for (const name of Object.keys(all)) all[name] += choice?.delta.audio?.[name] ?? "";
    reason = choice?.finish_reason ?? reason;
    usage = chunk.usage ?? usage;
  }
  return { ...all, sound: Buffer.from(all.data, "base64"), reason, usage };
}

describe("the embedded deployment", () => {
  let deployment;
  let client;
  let wave; // what the command line writes for the same request: a WAV file's samples

  before(async () => {
    deployment = await launched("embedded");
    client = clientOf(deployment);
    const path = `${deployment.home}/reply.wav`;
    await deployment.omnizmq("chat", QUESTION[0].content, "--output", path, "--connect", deployment.name);
    wave = (await readFile(path)).subarray(44);
  });
  after(() => deployment?.stop());

  test("text, whole", async () => {
    const answer = await client.chat.completions.create({ model: "embedded", messages: QUESTION });
    assert.equal(answer.choices[0].message.content, ANSWER);
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.equal(answer.usage.completion_tokens, 8);
  });

  test("text, streamed, by the client's own accumulator", async () => {
    const stream = client.chat.completions.stream({ model: "embedded", messages: QUESTION });
    let pieces = 0;
    stream.on("content", () => (pieces += 1));
    const answer = await stream.finalChatCompletion();
    assert.equal(answer.choices[0].message.content, ANSWER);
    assert.ok(pieces > 3);
  });

  for (const format of ["wav", "pcm16", "flac", "mp3", "opus"]) {
    test(`sound as ${format}, whole and streamed`, async () => {
      const asked = { ...SPOKEN, audio: { voice: "alloy", format } };
      const { audio, content } = (await client.chat.completions.create(asked)).choices[0].message;
      assert.equal(content, null);
      assert.equal(audio.transcript, ANSWER);
      const streamed = await joined(
        await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } }),
      );
      assert.equal(streamed.transcript, ANSWER);
      assert.equal(streamed.reason, "stop");
      assert.ok(streamed.usage.completion_tokens >= 8);
      assert.equal(streamed.id.split("audio_").length, 2);
      for (const file of [Buffer.from(audio.data, "base64"), streamed.sound]) {
        if (format === "pcm16") assert.ok(file.equals(wave));
        else assert.ok(file.toString("latin1").startsWith(BEGINS[format]));
        if (format === "wav") assert.ok(file.subarray(44).equals(wave));
        assert.ok(file.length > 4000);
      }
    });
  }

  for (const format of ["pcm", "wav", "mp3"]) {
    test(`a text said, as ${format}: bytes, and events`, async () => {
      const asked = { model: "embedded", voice: "alloy", input: ANSWER, response_format: format };
      const bytes = Buffer.from(await (await client.audio.speech.create(asked)).arrayBuffer());
      const answer = await client.audio.speech.create({ ...asked, stream_format: "sse" });
      const lines = (await answer.text()).split("\n\n").filter(Boolean);
      const events = lines.map((line) => JSON.parse(line.replace(/^data: /, "")));
      const { type, usage } = events.pop();
      assert.equal(type, "speech.audio.done");
      assert.ok(usage.input_tokens > 0);
      assert.ok(events.length > 1 && events.every((event) => event.type === "speech.audio.delta"));
      const sound = Buffer.concat(events.map((event) => Buffer.from(event.audio, "base64")));
      assert.ok(sound.equals(bytes));
      if (format === "pcm") assert.ok(bytes.equals(wave)); // as it sounds where it is an answer
      if (format === "wav") assert.ok(bytes.subarray(44).equals(wave));
    });
  }

  test("the model", async () => {
    const { data } = await client.models.list();
    assert.deepEqual(
      data.map((model) => model.id),
      ["embedded"],
    );
    assert.equal((await client.models.retrieve("embedded")).owned_by, "omnizmq");
  });

  test("an abort controller aborts the request, once", async () => {
    const { aborted } = (await deployment.status()).counters;
    const controller = new AbortController();
    const asked = { ...STORY, audio: { voice: "alloy", format: "wav" }, stream: true };
    const { data: stream, response } = await client.chat.completions
      .create(asked, { signal: controller.signal })
      .withResponse();
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta.audio) controller.abort();
    }
    const trace = await deployment.trace(response.headers.get("x-request-id"));
    assert.equal(trace.terminal.finish_reason, "abort");
    assert.equal(trace.events.filter((fact) => fact.event === "abort_asked").length, 1);
    await deployment.idle();
    assert.equal((await deployment.status()).counters.aborted, aborted + 1);
  });

  test("an abort controller ends one that has not begun to answer", async () => {
    const { aborted } = (await deployment.status()).counters;
    const controller = new AbortController();
    const asked = client.chat.completions.create(
      { ...STORY, audio: { voice: "alloy", format: "wav" } },
      { signal: controller.signal },
    );
    const refused = assert.rejects(asked, OpenAI.APIUserAbortError);
    await until(async () => (await deployment.status()).live_requests === 1);
    controller.abort();
    await refused;
    await deployment.idle();
    assert.equal((await deployment.status()).counters.aborted, aborted + 1);
  });

  test("an abort controller ends a text that is said", async () => {
    const { aborted } = (await deployment.status()).counters;
    const controller = new AbortController();
    const asked = { model: "embedded", voice: "alloy", input: `${ANSWER} `.repeat(100), response_format: "pcm" };
    const answer = await client.audio.speech.create(asked, { signal: controller.signal });
    const reader = answer.body.getReader();
    assert.ok((await reader.read()).value.length > 0);
    controller.abort();
    await assert.rejects(async () => {
      while (!(await reader.read()).done);
    });
    await deployment.idle();
    assert.equal((await deployment.status()).counters.aborted, aborted + 1);
  });

  const caruso = { audio: { voice: "caruso", format: "wav" }, modalities: ["text", "audio"] };
  const refusals = [
    [{ n: 2 }, OpenAI.BadRequestError, 400, "invalid_request", "n: is not supported"],
    [caruso, OpenAI.BadRequestError, 400, "invalid_request", "there is no voice 'caruso'"],
    [{ model: "gpt-audio" }, OpenAI.NotFoundError, 404, "model_not_found", "does not exist"],
  ];
  for (const [body, kind, status, code, message] of refusals) {
    test(`refused: ${JSON.stringify(body)}`, async () => {
      const error = await client.chat.completions
        .create({ model: "embedded", messages: QUESTION, ...body })
        .then(() => assert.fail("it was answered"), (thrown) => thrown);
      assert.ok(error instanceof kind, String(error));
      assert.equal(error.status, status);
      assert.equal(error.code, code);
      assert.match(error.message, new RegExp(message));
    });
  }

  test("a deadline that passes is not asked again", async () => {
    const patient = clientOf(deployment, { maxRetries: 2 });
    const { requests } = (await deployment.status()).counters;
    const asked = patient.chat.completions.create(
      { model: "embedded", messages: STORY.messages },
      { headers: { "x-request-timeout": "0.05" } },
    );
    await assert.rejects(asked, (error) => error.status === 504 && error.code === "deadline_exceeded");
    await deployment.idle();
    assert.equal((await deployment.status()).counters.requests, requests + 1);
  });
});

describe("a deployment with keys and room for one", () => {
  const sha256 = createHash("sha256").update("key of ann").digest("hex");
  const body = { model: "synthetic", messages: [{ role: "user", content: "word ".repeat(200) }] };
  let deployment;

  before(async () => {
    deployment = await launched(
      "synthetic",
      "stage.thinker.options.interval_ms=200",
      "plugins.http.max_concurrent=1",
      `plugins.http.api_keys=[{name = "ann", sha256 = "${sha256}"}]`,
    );
  });
  after(() => deployment?.stop());

  test("another key", async () => {
    await assert.rejects(clientOf(deployment).models.list(), OpenAI.AuthenticationError);
  });

  test("more than there is room for, asked again by the client itself", async () => {
    const client = clientOf(deployment, { apiKey: "key of ann" });
    const stream = await client.chat.completions.create({ ...body, stream: true });
    const error = await client.chat.completions.create(body).then(() => null, (thrown) => thrown);
    assert.ok(error instanceof OpenAI.RateLimitError);
    assert.equal(error.headers.get("retry-after"), "1");
    const patient = clientOf(deployment, { apiKey: "key of ann", maxRetries: 5 });
    const short = { ...body, messages: [{ role: "user", content: "one two" }] };
    const answered = patient.chat.completions.create(short);
    stream.controller.abort();
    assert.equal((await answered).choices[0].message.content, "one two");
  });
});

test("a request that fails in its middle", async () => {
  const deployment = await launched("synthetic", "stage.thinker.options.fail_at=3");
  try {
    const messages = [{ role: "user", content: "one two three four" }];
    const stream = await clientOf(deployment).chat.completions.create({ model: "synthetic", messages, stream: true });
    let said = "";
    const read = async () => {
      for await (const chunk of stream) said += chunk.choices[0].delta.content ?? "";
    };
    await assert.rejects(read, (error) => error instanceof OpenAI.APIError && error.code === "stage_error");
    assert.equal(said, "one two");
  } finally {
    await deployment.stop();
  }
});
