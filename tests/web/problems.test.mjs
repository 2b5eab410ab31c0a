// What goes wrong is said on the page, and nothing that was typed is lost.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
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
  const ann = "key of änn à"; // characters beyond ASCII: a key is its bytes in UTF-8
  const sha256 = createHash("sha256").update(ann).digest("hex");
  let deployment;

  before(async () => {
    const keys = `plugins.http.api_keys=[{name = "ann", sha256 = "${sha256}"}]`;
    deployment = await launched("synthetic", SLOW, "plugins.http.max_concurrent=1", keys);
  });
  after(() => deployment?.stop());

  test("401: the page asks for a key, and goes on with it", async () => {
    const page = await paged(browser, deployment.url);
    await page.waitForSelector("#locked:visible");
    assert.equal(await page.locator("#status").textContent(), "The server wants an API key.");
    assert.equal(await page.locator("#problem").isVisible(), false, "nothing is wrong yet");
    assert.equal(await page.evaluate(() => document.activeElement.id), "key");
    await page.locator("#text").fill("kept");
    await page.locator("#text").press("Enter"); // there is nobody to ask
    assert.equal(await page.locator("#text").inputValue(), "kept");
    assert.equal(await page.locator(".turn").count(), 0);
    await page.locator("#key").fill("key of bob");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => /not one of its keys/.test(document.getElementById("problem").textContent));
    await page.locator("#key").fill(ann);
    await page.getByRole("button", { name: "Use this key" }).click();
    await page.waitForSelector("#send:enabled");
    assert.equal(await page.locator("#locked").isVisible(), false);
    assert.equal(await page.evaluate(() => document.activeElement.id), "text");
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
    await page.waitForSelector("#locked:visible");
    assert.equal(await page.locator("#problem").isVisible(), false);
    await page.locator("#key").fill("key of bob");
    await page.getByRole("button", { name: "Use this key" }).click();
    await page.waitForFunction(() => /not one of its keys/.test(document.getElementById("problem").textContent));
    await page.locator("#key").fill(ann);
    await page.getByRole("button", { name: "Use this key" }).click();
    await page.waitForSelector("#replicas tr");
    assert.equal(await page.locator("#problem").isVisible(), false);
    await closed(page);
  });

  test("429: it says so, and the words can be sent again", async () => {
    const other = new AbortController();
    const asked = await fetch(`${deployment.url}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${Buffer.from(ann).toString("latin1")}` },
      body: JSON.stringify({ model: "synthetic", messages: [{ role: "user", content: WORDS }], stream: true }),
      signal: other.signal,
    });
    assert.equal(asked.status, 200);
    const page = await paged(browser, deployment.url);
    await page.locator("#key").fill(ann);
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

test("a page of another site cannot end a request", async () => {
  const deployment = await launched("synthetic", SLOW);
  const site = createServer((_, answer) => answer.setHeader("content-type", "text/html").end("<p>another site</p>"));
  try {
    await once(site.listen(0, "127.0.0.1"), "listening");
    const page = await paged(browser, deployment.url);
    await ask(page, WORDS);
    await page.waitForFunction(() => document.querySelector(".turn.assistant")?.textContent.includes("word word"));
    const status = await (await fetch(`${deployment.url}/v1/deployment`)).json();
    const other = await paged(browser, `http://localhost:${site.address().port}`);
    const abort = `${deployment.url}/v1/requests/${status.slowest[0].request_id}/abort`;
    const [answer] = await Promise.all([
      other.waitForEvent("response"),
      other.evaluate((url) => fetch(url, { method: "POST", mode: "no-cors" }).then(() => {}), abort),
    ]);
    assert.equal(answer.status(), 403);
    await page.locator("#stop").click();
    await page.waitForFunction(() => document.getElementById("status").textContent === "Stopped.");
    await other.close();
    await closed(page);
  } finally {
    site.close();
    await deployment.stop();
  }
});

test("a request that fails in its middle: what had come stays, and why it failed is said", async () => {
  const deployment = await launched("synthetic", SLOW, "stage.thinker.options.fail_at=3"); // its words are read before
  try {
    const page = await paged(browser, deployment.url);
    await ask(page, "one two three four");
    assert.match(await problem(page), /^thinker: /);
    assert.match(await page.locator(".turn.assistant").textContent(), /one/);
    await page.waitForFunction(() => /fail/i.test(document.getElementById("verdict").textContent));
    const stages = await page.locator("#stages").textContent();
    assert.match(stages, /failed|ended with it/);
    assert.doesNotMatch(stages, /goes on|at work|waits for/);
    await closed(page);
  } finally {
    await deployment.stop();
  }
});

test("a conversation that has become too long: how to go on is said, and what was refused is not looked for", async () => {
  const deployment = await launched("synthetic", "router.max_prompt_bytes=100");
  try {
    const page = await paged(browser, deployment.url);
    const missed = [];
    page.on("response", (answer) => answer.status() === 404 && missed.push(answer.url()));
    await ask(page, "word ".repeat(10).trim());
    await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Answered"));
    await ask(page, "word ".repeat(15).trim());
    assert.match(await problem(page), /prompt.*“New conversation” begins without/);
    assert.equal(await page.locator("#verdict").textContent(), "It was refused, and never began.");
    await page.locator("#fresh").click();
    assert.equal(await page.locator("#problem").isVisible(), false);
    assert.equal(await page.locator("#verdict").textContent(), "Its stages are shown here while it runs.");
    await page.locator("#send").click();
    await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Answered"));
    await page.waitForFunction(() => document.querySelectorAll("#stages li").length === 3);
    await page.locator("#fresh").click();
    assert.equal(await page.locator("#stages li").count(), 0, "nothing of what was deleted");
    assert.deepEqual(missed, []);
    await closed(page);
  } finally {
    await deployment.stop();
  }
});

test("a stage that nobody serves: the page says so until somebody does", async () => {
  const deployment = await launched("synthetic");
  try {
    await deployment.omnizmq("drain", "talker/0", "--connect", deployment.name);
    const page = await paged(browser, deployment.url);
    await page.waitForFunction(() => /no replica serves talker/.test(document.getElementById("status").textContent));
    await deployment.omnizmq("drain", "talker/0", "--undo", "--connect", deployment.name);
    await page.waitForFunction(() => document.getElementById("status").textContent === "Ready.");
    await closed(page);
  } finally {
    await deployment.stop();
  }
});

test("a server that does not answer yet: the pages ask it again, and words wait for it", async () => {
  const deployment = await launched("synthetic");
  try {
    const context = await browser.newContext();
    let release;
    const typed = new Promise((is) => (release = is));
    const lost = { "/v1/models": 0, "/openapi.json": 0 };
    await context.route(/\/v1\/models$|\/openapi\.json$/, async (route) => {
      const { pathname } = new URL(route.request().url());
      if (pathname === "/v1/models") await typed;
      lost[pathname] += 1;
      await (lost[pathname] > 2 ? route.continue() : route.abort());
    });
    const page = await paged(context, deployment.url);
    await page.locator("#text").fill("one two");
    await page.locator("#text").press("Enter");
    assert.equal(await page.locator("#text").inputValue(), "one two");
    release();
    assert.match(await problem(page), /does not answer/);
    await page.waitForSelector("#send:enabled");
    assert.equal(await page.locator("#problem").isVisible(), false);
    await page.locator("#text").press("Enter");
    await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Answered"));
    const docs = await paged(context, `${deployment.url}/docs`);
    assert.match(await problem(docs), /does not answer/);
    await docs.waitForSelector("#ChatBody");
    assert.equal(await docs.locator("#problem").isVisible(), false);
    await closed(page);
    await closed(docs);
    await context.close();
  } finally {
    await deployment.stop();
  }
});

test("a router that hangs: the page of the deployment says so", async () => {
  const deployment = await launched("synthetic");
  try {
    const board = await paged(browser, `${deployment.url}/deployment`);
    await board.waitForSelector("#replicas tr");
    deployment.child.kill("SIGSTOP");
    assert.match(await problem(board), /the router did not answer within 2 s/);
    deployment.child.kill("SIGCONT");
    await board.locator("#problem").waitFor({ state: "hidden" });
    await closed(board);
  } finally {
    deployment.child.kill("SIGCONT");
    await deployment.stop();
  }
});

test("a server that says nothing: the page of the deployment does not wait for ever", async () => {
  const deployment = await launched("synthetic");
  try {
    const board = await paged(browser, `${deployment.url}/deployment`);
    await board.waitForSelector("#replicas tr");
    await board.route("**/v1/deployment", () => {}); // it is never answered
    assert.match(await problem(board), /does not answer/);
    await board.unroute("**/v1/deployment");
    await board.locator("#problem").waitFor({ state: "hidden" });
    assert.equal(await board.locator("#board.stale").count(), 0);
    await closed(board);
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
    deployment.child.kill("SIGKILL"); // the bridge ends with it, and may say so before
    assert.match(await problem(page), /does not answer|router is gone/);
    await ask(page, "one two");
    await page.waitForFunction(() => /does not answer/.test(document.getElementById("problem").textContent));
    assert.equal(await page.locator("#text").inputValue(), "one two");
    await page.waitForFunction(() => /What became of it is not known/.test(document.getElementById("verdict").textContent));
    assert.doesNotMatch(await page.locator("#stages").textContent(), /goes on|at work|waits for/);
    assert.match(await problem(board), /does not answer/);
    assert.equal(await board.locator("#board.stale").count(), 1, "its figures are marked as old");
    assert.equal(await board.locator("#again").textContent(), "no answer since");
    await closed(page);
    await closed(board);
  } finally {
    await deployment.stop();
  }
});
