// The page where one talks with the deployment: asks, shows and plays the answer as it comes, and stops it.

import { Problem, ask, events, get, keepKey, key } from "/pages/api.js";
import { Player, WavStream } from "/pages/sound.js";
import { Timeline, element, time } from "/pages/timeline.js";

const at = (id) => document.getElementById(id);
const player = new Player();
const timeline = new Timeline({
  stages: at("stages"),
  verdict: at("verdict"),
  legend: at("legend"),
  id: at("id"),
});
let model = null;
let turns = []; // as the API has messages
let running = null; // what ends the request under way

async function begin() {
  try {
    [model] = (await get("/v1/models")).data;
  } catch (problem) {
    show(problem);
    say("Not connected.");
    return;
  }
  at("model").textContent = model.id;
  at("locked").hidden = !key();
  offer();
  say("Ready.");
  settle();
}

/** What the deployment can give. */
function offer() {
  const [texts, sounds] = ["text", "audio"].map((modality) => model.modalities.includes(modality));
  at("speak").checked = sounds && (at("speak").checked || !texts);
  at("speak").disabled = !(texts && sounds);
  at("voice").replaceChildren(...model.voices.map((voice) => new Option(voice)));
}

async function submit() {
  const words = at("text").value.trim();
  if (!words || running !== null) return;
  player.stop();
  show(null);
  running = new AbortController();
  at("text").value = "";
  const asked = turns;
  asked.push({ role: "user", content: words });
  const question = turn("user", "You", words);
  const answer = turn("assistant", model.id, "");
  settle();
  answer.box.setAttribute("aria-busy", "true");
  const whole = await hear(answer.text, running.signal).then(() => true, failed);
  answer.box.removeAttribute("aria-busy");
  running = null;
  settle();
  const said = answer.text.textContent;
  if (said || whole) {
    asked.push({ role: "assistant", content: said });
    if (!said) answer.text.textContent = "♪";
    return;
  }
  asked.pop();
  question.box.remove();
  answer.box.remove();
  at("text").value ||= words;
}

/** One request; its words go into `text`. Throws `Problem`, `AbortError`. */
async function hear(text, signal) {
  const begun = performance.now();
  const seen = { text: null, sound: null };
  const id = name();
  say("Asking …");
  timeline.follow(id, begun, () => running?.signal === signal);
  const answer = await ask("/v1/chat/completions", { body: body(), headers: { "x-request-id": id }, signal });
  const wav = new WavStream();
  for await (const chunk of events(answer)) {
    signal.throwIfAborted(); // several events may have come at once
    const delta = chunk.choices[0]?.delta ?? {};
    const words = delta.content ?? delta.audio?.transcript ?? "";
    if (words) {
      seen.text ??= performance.now() - begun;
      text.append(words);
      scroll();
    }
    if (delta.audio?.data) {
      seen.sound ??= performance.now() - begun;
      player.add(wav.add(delta.audio.data), wav.rate);
      watch();
    }
    say(progress("Answering", seen));
  }
  say(progress(`Answered in ${time(performance.now() - begun)}`, seen));
}

/** By which the request can be found before its answer begins. */
function name() {
  const random = crypto.getRandomValues(new Uint32Array(2));
  return `page-${Array.from(random, (n) => n.toString(36)).join("")}`;
}

function body() {
  const chosen = { model: model.id, messages: turns, stream: true };
  if (!at("speak").checked) return { ...chosen, modalities: ["text"] };
  const modalities = ["text", "audio"].filter((modality) => model.modalities.includes(modality));
  return { ...chosen, modalities, audio: { voice: at("voice").value || "default", format: "wav" } };
}

function progress(what, seen) {
  const parts = [what];
  if (seen.text !== null) parts.push(`first text after ${time(seen.text)}`);
  if (seen.sound !== null) parts.push(`first sound after ${time(seen.sound)}`);
  return `${parts.join(", ")}.`;
}

/** It is not whole. */
function failed(problem) {
  player.stop();
  const stopped = problem.name === "AbortError";
  say(stopped ? "Stopped." : "The request failed.");
  if (!stopped) show(problem);
  return false;
}

function stop() {
  if (document.activeElement === at("stop")) at("text").focus();
  running?.abort();
  player.stop();
  settle();
}

function fresh() {
  stop();
  turns = [];
  at("turns").replaceChildren(at("empty"));
  at("empty").hidden = false;
  at("text").focus();
}

// --- What is seen ---

function turn(role, who, words) {
  at("empty").hidden = true;
  const box = element("div", `turn ${role}`);
  const text = element("span", "", words);
  box.append(element("span", "who", who), text);
  at("turns").append(box);
  scroll();
  return { box, text };
}

function scroll() {
  at("turns").scrollTop = at("turns").scrollHeight;
}

function say(text) {
  if (at("status").textContent !== text) at("status").textContent = text;
}

function show(problem) {
  if (problem !== null && !(problem instanceof Problem)) throw problem;
  at("problem").hidden = problem === null;
  at("problem").textContent = problem?.message ?? "";
  if (problem?.status === 401) {
    at("locked").hidden = false;
    at("key").focus();
  }
}

function settle() {
  at("send").disabled = model === null || running !== null;
  at("voice").disabled = model === null || !at("speak").checked;
  at("stop").disabled = running === null && !player.active;
}

let watching = false;

/** Shows how much has been heard, as long as something is. */
function watch() {
  if (watching) return;
  watching = true;
  const look = () => {
    at("heard").hidden = player.length === 0;
    at("played").value = player.length ? player.heard / player.length : 0;
    at("seconds").textContent = `${player.heard.toFixed(1)} of ${player.length.toFixed(1)} s heard`;
    at("hear").hidden = !player.blocked;
    settle();
    watching = player.active || running !== null;
    if (watching) setTimeout(look, 100);
  };
  look();
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
at("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
at("stop").addEventListener("click", stop);
at("fresh").addEventListener("click", fresh);
at("hear").addEventListener("click", () => player.resume());
at("speak").addEventListener("change", settle);
at("key").addEventListener("change", () => {
  keepKey(at("key").value.trim());
  show(null);
  if (model === null) begin();
});
at("key").value = key();
begin();
