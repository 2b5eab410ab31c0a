// What goes wrong is said on the page, and nothing that was typed is lost.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { after, before, describe, test } from "node:test";

import { opened, paged } from "./browser.mjs";
import { launched } from "./deployment.mjs";

const SLOW = "stage.thinker.options.interval_ms=200";
const WORDS = "word ".repeat(100).trim();

let browser;

before(async () => {
  browser = await opened();
});
after(() => browser?.close());

async function ask(page, words) {
  await page.waitForSelector("#send:enabled");
  await page.locator("#text").fill(words);
  await page.locator("#send").click();
}

/** The problem that is shown, once it is. */
async function problem(page) {
  await page.waitForSelector("#problem:visible");
  return page.locator("#problem").textContent();
}

async function closed(page) {
  assert.deepEqual(page.wrongs, []);
  await page.close();
}

describe("a deployment with keys and room for one", () => {
  const sha256 = createHash("sha256").update("key of ann").digest("hex");
  let deployment;

  before(async () => {
    const keys = `plugins.http.api_keys=[{name = "ann", sha256 = "${sha256}"}]`;
    deployment = await launched("synthetic", SLOW, "plugins.http.max_concurrent=1", keys);
  });
  after(() => deployment?.stop());

  test("401: the page asks for a key, and goes on with it", async () => {
    const page = await paged(browser, deployment.url);
    assert.match(await problem(page), /wants an API key/);
    assert.equal(await page.evaluate(() => document.activeElement.id), "key");
    await page.locator("#key").fill("key of bob");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.getElementById("status").textContent === "Not connected.");
    await page.locator("#key").fill("key of ann");
    await page.keyboard.press("Enter");
    await ask(page, "one two");
    await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Answered"));
    assert.equal(await page.locator("#problem").isVisible(), false);
    await page.waitForFunction(() => document.querySelectorAll("#stages li").length === 3); // its trace is its own
    await page.goto(`${deployment.url}/deployment`);
    await page.waitForSelector("#replicas tr"); // the tab has kept the key
    await closed(page);
  });

  test("401 on the page of the deployment", async () => {
    const page = await paged(browser, `${deployment.url}/deployment`);
    assert.match(await problem(page), /wants an API key/);
    await page.locator("#key").fill("key of ann");
    await page.getByRole("button", { name: "Use this key" }).click();
    await page.waitForSelector("#replicas tr");
    assert.equal(await page.locator("#problem").isVisible(), false);
    await closed(page);
  });

  test("429: it says so, and the words can be sent again", async () => {
    const other = new AbortController();
    const asked = await fetch(`${deployment.url}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: "Bearer key of ann" },
      body: JSON.stringify({ model: "synthetic", messages: [{ role: "user", content: WORDS }], stream: true }),
      signal: other.signal,
    });
    assert.equal(asked.status, 200);
    const page = await paged(browser, deployment.url);
    await page.locator("#key").fill("key of ann");
    await page.keyboard.press("Enter");
    await ask(page, "one two");
    assert.match(await problem(page), /has no room at present: .*Ask again/);
    assert.equal(await page.locator("#text").inputValue(), "one two");
    assert.equal(await page.locator(".turn").count(), 0);
    other.abort();
    await deployment.idle();
    await page.locator("#send").click();
    await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Answered"));
    assert.equal(await page.locator("#problem").isVisible(), false);
    await closed(page);
  });
});

test("a request that fails in its middle: what had come stays, and why it failed is said", async () => {
  const deployment = await launched("synthetic", "stage.thinker.options.fail_at=3");
  try {
    const page = await paged(browser, deployment.url);
    await ask(page, "one two three four");
    assert.match(await problem(page), /^thinker: /);
    assert.match(await page.locator(".turn.assistant").textContent(), /one two/);
    await page.waitForFunction(() => /fail/i.test(document.getElementById("verdict").textContent));
    await closed(page);
  } finally {
    await deployment.stop();
  }
});

test("a server that is gone: in the middle of an answer, and before one", async () => {
  const deployment = await launched("synthetic", SLOW);
  try {
    const page = await paged(browser, deployment.url);
    const board = await paged(browser, `${deployment.url}/deployment`);
    await board.waitForSelector("#replicas tr");
    await ask(page, WORDS);
    await page.waitForFunction(() => document.querySelector(".turn.assistant")?.textContent.includes("word word"));
    deployment.child.kill("SIGKILL"); // the bridge ends with it
    assert.match(await problem(page), /./);
    await ask(page, "one two");
    await page.waitForFunction(() => /does not answer/.test(document.getElementById("problem").textContent));
    assert.equal(await page.locator("#text").inputValue(), "one two");
    assert.match(await problem(board), /does not answer/);
    await closed(page);
    await closed(board);
  } finally {
    await deployment.stop();
  }
});
