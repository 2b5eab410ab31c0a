// The page where one talks with the deployment: asks, shows and plays the answer as it comes, and stops it.

import { Problem, ask, events, get, keepKey, key } from "/pages/api.js";
import { at, complain, element, say, time } from "/pages/dom.js";
import { Player, WavStream } from "/pages/sound.js";
import { Timeline } from "/pages/timeline.js";

const AGAIN_MS = 2000;
const TALK = "omnizmq-talk";
const SOUND_ALONE = "♪";
const SHORTER = "All that was said before is asked along with it: “New conversation” begins without.";
const player = new Player();
const timeline = new Timeline({
  stages: at("stages"),
  verdict: at("verdict"),
  legend: at("legend"),
  id: at("id"),
});
let model = null;
let again = 0; // the timer that asks for it once more
let turns = []; // as the API has messages
let running = null; // what ends the request under way
let voice = ""; // that was chosen before

/** Finds out what is served; asks on until the server answers, or wants a key. */
async function begin() {
  clearTimeout(again);
  try {
    [model] = (await get("/v1/models")).data;
  } catch (problem) {
    if (model !== null) return; // asked once more meanwhile, with a key
    show(problem);
    const locked = problem.status === 401;
    if (!locked) again = setTimeout(begin, AGAIN_MS);
    if (problem.asksForKey) tell(problem.message);
    else tell(locked ? "Not connected." : "Not connected, asking again …");
    return;
  }
  show(null);
  at("model").textContent = model.id;
  if (!at("locked").hidden) at("text").focus();
  at("locked").hidden = true;
  offer();
  settle();
  await stand();
}

/** Says whether every stage is served; asks on until it is. */
async function stand() {
  clearTimeout(again);
  const before = at("status").textContent;
  const served = await get("/health/ready").then(() => "Ready.", (problem) => problem.message);
  if (at("status").textContent === before) tell(served); // nothing has been asked meanwhile
  if (served !== "Ready.") again = setTimeout(stand, AGAIN_MS);
}

/** What the deployment can give. */
function offer() {
  const [texts, sounds] = ["text", "audio"].map((modality) => model.modalities.includes(modality));
  at("speak").checked = sounds && (at("speak").checked || !texts);
  at("speak").disabled = !(texts && sounds);
  at("voice").replaceChildren(...model.voices.map((name) => new Option(name, name, false, name === voice)));
}

async function submit() {
  const words = at("text").value.trim();
  if (!words || model === null || running !== null) return;
  player.stop();
  at("heard").hidden = true; // of the last answer
  show(null);
  running = new AbortController();
  at("text").value = "";
  const asked = turns;
  asked.push({ role: "user", content: words });
  const question = turn("user", words);
  const answer = turn("assistant", "");
  settle();
  answer.box.setAttribute("aria-busy", "true");
  const whole = await hear(answer.text, running.signal).then(() => true, failed);
  answer.box.removeAttribute("aria-busy");
  running = null;
  settle();
  const said = answer.text.textContent;
  if (said || whole) {
    asked.push({ role: "assistant", content: said });
    if (!said) answer.text.textContent = SOUND_ALONE;
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
  tell("Asking …");
  timeline.follow(id, begun, () => running?.signal === signal);
  const asked = { body: body(), headers: { "x-request-id": id }, signal };
  const answer = await ask("/v1/chat/completions", asked).catch((problem) => {
    if (problem.id === id) timeline.clear("It was refused, and never began."); // else it has an id of the server's
    throw problem;
  });
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
    tell(progress("Answering", seen));
  }
  tell(progress(`Answered in ${time(performance.now() - begun)}`, seen));
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
  tell(stopped ? "Stopped." : "The request failed.");
  if (!stopped) show(problem);
  if ([400, 413].includes(problem.status) && turns.length > 1) say("problem", `${problem.message}. ${SHORTER}`);
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
  at("heard").hidden = true;
  timeline.clear();
  show(null);
  at("turns").replaceChildren(at("empty"));
  at("empty").hidden = false;
  at("text").focus();
}

// --- What stays while another page is looked at ---

/** The conversation, and what is typed, for this tab. An answer under way ends here, as `submit` has it. */
function keep() {
  const kept = { turns: [...turns], text: at("text").value, speak: at("speak").checked, voice: at("voice").value || voice };
  if (running !== null && turns.length) {
    const content = at("turns").lastElementChild.lastElementChild.textContent;
    if (content) kept.turns.push({ role: "assistant", content });
    else kept.text ||= kept.turns.pop().content;
  }
  sessionStorage.setItem(TALK, JSON.stringify(kept));
}

function restore() {
  const kept = JSON.parse(sessionStorage.getItem(TALK));
  if (kept === null) return;
  turns = kept.turns;
  at("text").value = kept.text;
  at("speak").checked = kept.speak;
  voice = kept.voice;
  for (const { role, content } of turns) turn(role, content || SOUND_ALONE);
}

// --- What is seen ---

function turn(role, words) {
  at("empty").hidden = true;
  const box = element("div", `turn ${role}`);
  const text = element("span", "", words);
  box.append(element("span", "who", role === "user" ? "You" : "Answer"), text);
  at("turns").append(box);
  scroll();
  return { box, text };
}

function scroll() {
  at("turns").scrollTop = at("turns").scrollHeight;
}

function tell(text) {
  say("status", text);
}

function show(problem) {
  if (problem !== null && !(problem instanceof Problem)) throw problem;
  complain(problem);
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
at("locked").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey(at("key").value.trim());
  model = null;
  settle();
  begin();
});
addEventListener("pagehide", keep);
restore();
at("key").value = key();
begin();
