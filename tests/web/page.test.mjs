// The page where one talks with a deployment, in headless Chromium against the embedded deployment.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, describe, test } from "node:test";

import { opened, paged } from "./browser.mjs";
import { launched, until } from "./deployment.mjs";

const QUESTION = "What is the capital of France?";
const ANSWER = "The capital of France is Paris.";
const STORY = "Tell me a long story.";

let browser;
let deployment;
let wave; // 16-bit samples that the command line writes for the question

before(async () => {
  [browser, deployment] = await Promise.all([opened(), launched("embedded")]);
  const path = `${deployment.home}/reply.wav`;
  await deployment.omnizmq("chat", QUESTION, "--output", path, "--connect", deployment.name);
  const file = await readFile(path);
  wave = Array.from({ length: (file.length - 44) / 2 }, (_, n) => file.readInt16LE(44 + 2 * n));
});
after(async () => {
  await browser?.close();
  await deployment?.stop();
});

async function ready(options) {
  const page = await paged(browser, deployment.url, options);
  await page.waitForSelector("#send:enabled");
  return page;
}

/** Types the words and presses Enter. */
async function ask(page, words) {
  await page.locator("#text").pressSequentially(words);
  await page.keyboard.press("Enter");
}

const answer = (page) => page.locator(".turn.assistant span:last-child").last();
const status = (page) => page.locator("#status");

async function closed(page) {
  assert.deepEqual(page.wrongs, []);
  await page.close();
}

/** The request id that the page shows. */
async function requestOf(page) {
  const shown = await until(async () => (await page.locator("#id").textContent()) || false);
  return shown.split(" ").at(-1);
}

describe("an answer", () => {
  test("grows as text, and is heard, whole and without a gap", async () => {
    const page = await ready();
    await page.evaluate(() => {
      window.lengths = [];
      new MutationObserver(() => {
        const text = document.querySelector(".turn.assistant span:last-child")?.textContent ?? "";
        if (text.length > (window.lengths.at(-1) ?? 0)) window.lengths.push(text.length);
      }).observe(document.getElementById("turns"), { childList: true, subtree: true, characterData: true });
    });
    await ask(page, QUESTION);
    await page.waitForFunction(() => window.peak() > 0.02);
    await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Answered"));
    assert.equal(await answer(page).textContent(), ANSWER);
    assert.ok((await page.evaluate(() => window.lengths)).length > 3, "the text came piece by piece");
    assert.match(await status(page).textContent(), /first text after .*, first sound after /);
    await page.waitForFunction(() => document.getElementById("stop").disabled); // it has been heard to its end
    assert.match(await page.locator("#seconds").textContent(), /^2\.3 of 2\.3 s heard$/);
    const played = await page.evaluate(() => window.played);
    assert.ok(played.length > 1);
    assert.deepEqual(
      played.flatMap((piece) => piece.samples),
      wave,
    );
    for (const [n, piece] of played.entries()) {
      assert.equal(piece.rate, 24000);
      assert.equal(piece.contextRate, 24000);
      if (n === 0) continue;
      const end = played[n - 1].when + played[n - 1].samples.length / piece.rate;
      const unbroken = Math.abs(piece.when - end) < 1e-6;
      assert.ok(unbroken || end < piece.now, `piece ${n} begins at ${piece.when}, after ${end}`); // or it came too late
    }
    await closed(page);
  });

  test("shows its stages as it goes on", async () => {
    const page = await ready();
    await ask(page, STORY);
    const stages = page.locator("#stages li");
    await page.waitForFunction(() => document.querySelectorAll("#stages .makes").length === 3);
    assert.equal(await page.locator("#stop").isEnabled(), true, "while it runs");
    assert.deepEqual(await stages.locator(".name span").allTextContents(), ["thinker", "talker", "code2wav"]);
    assert.match(await stages.first().textContent(), /first output \d+/);
    await page.keyboard.press("Escape");
    await page.waitForFunction(() => /abort/i.test(document.getElementById("verdict").textContent));
    await deployment.trace(await requestOf(page));
    await closed(page);
  });

  test("without sound is text alone", async () => {
    const page = await ready();
    await page.locator("#speak").uncheck();
    assert.equal(await page.locator("#voice").isDisabled(), true);
    await ask(page, QUESTION);
    await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Answered"));
    assert.equal(await answer(page).textContent(), ANSWER);
    assert.deepEqual(await page.evaluate(() => window.played), []);
    await requestOf(page);
    assert.deepEqual(await page.locator("#stages .name span").allTextContents(), ["thinker"]);
    await closed(page);
  });

  test("knows what was said before", async () => {
    const page = await ready();
    await page.locator("#speak").uncheck();
    const bodies = [];
    page.on("request", (request) => request.method() === "POST" && bodies.push(request.postDataJSON()));
    for (const words of [QUESTION, "And of Italy?"]) {
      await ask(page, words);
      await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Answered"));
      await page.waitForSelector("#send:enabled");
    }
    assert.deepEqual(bodies[1].messages, [
      { role: "user", content: QUESTION },
      { role: "assistant", content: ANSWER },
      { role: "user", content: "And of Italy?" },
    ]);
    await page.locator("#fresh").click();
    assert.equal(await page.locator(".turn").count(), 0);
    await closed(page);
  });
});

test("the sound of an answer is not shown with the next one", async () => {
  const page = await ready();
  await ask(page, QUESTION);
  await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Answered"));
  await page.waitForFunction(() => document.getElementById("stop").disabled); // it has been heard to its end
  assert.equal(await page.locator("#heard").isVisible(), true);
  await page.locator("#speak").uncheck();
  await ask(page, QUESTION);
  await page.waitForFunction(() => document.querySelectorAll(".turn").length === 4);
  assert.equal(await page.locator("#heard").isVisible(), false);
  await page.waitForSelector("#send:enabled");
  assert.equal(await page.locator("#heard").isVisible(), false);
  await closed(page);
});

test("the conversation stays while another page is looked at, with as much of an answer as had come", async () => {
  const page = await ready();
  await page.locator("#speak").uncheck();
  await ask(page, QUESTION);
  await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Answered"));
  await ask(page, STORY);
  await page.waitForFunction(() => document.querySelectorAll(".turn")[3]?.lastElementChild.textContent.length > 10);
  await page.locator("#text").fill("not sent yet");
  await page.getByRole("link", { name: "Deployment" }).click();
  await page.waitForSelector("#replicas tr");
  await page.getByRole("link", { name: "Talk" }).click();
  await page.waitForSelector("#send:enabled");
  const said = await page.locator(".turn span:last-child").allTextContents();
  assert.deepEqual(said.slice(0, 3), [QUESTION, ANSWER, STORY]);
  assert.ok(said[3].length > 10);
  assert.equal(await page.locator("#text").inputValue(), "not sent yet");
  assert.equal(await page.locator("#speak").isChecked(), false);
  await deployment.idle();
  const sent = page.waitForRequest((request) => request.method() === "POST");
  await page.locator("#text").press("Enter");
  assert.deepEqual((await sent).postDataJSON().messages.map((message) => message.content), [...said, "not sent yet"]);
  await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Answered"));
  await page.locator("#fresh").click();
  await page.reload();
  await page.waitForSelector("#send:enabled");
  assert.equal(await page.locator(".turn").count(), 0);
  await closed(page);
});

test("Stop ends the request with one abort, and the sound", async () => {
  const { aborted } = (await deployment.status()).counters;
  const page = await ready();
  await ask(page, STORY);
  await page.waitForFunction(() => window.peak() > 0.02);
  await page.locator("#stop").click();
  await page.waitForFunction(() => document.getElementById("status").textContent === "Stopped.");
  const pieces = await page.evaluate(() => window.played.length);
  const trace = await deployment.trace(await requestOf(page));
  assert.equal(trace.terminal.finish_reason, "abort");
  assert.equal(trace.events.filter((fact) => fact.event === "abort_asked").length, 1);
  await deployment.idle();
  assert.equal((await deployment.status()).counters.aborted, aborted + 1);
  assert.equal(await page.evaluate(() => window.played.length), pieces, "nothing more was played");
  assert.equal(await page.evaluate(() => window.peak()), 0);
  assert.ok((await answer(page).textContent()).length > 10, "what had come stays");
  assert.equal(await page.locator("#stop").isDisabled(), true);
  assert.equal(await page.evaluate(() => document.activeElement.id), "text");
  await closed(page);
});

test("a reader who leaves ends the request", async () => {
  const { aborted } = (await deployment.status()).counters;
  const page = await ready();
  await ask(page, STORY);
  await page.waitForFunction(() => window.peak() > 0.02);
  await closed(page);
  await deployment.idle();
  assert.equal((await deployment.status()).counters.aborted, aborted + 1);
});
