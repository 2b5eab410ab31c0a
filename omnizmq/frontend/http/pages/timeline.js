// A request's stages as bars, from the document that `omnizmq trace --json` gives.

import { get } from "/pages/api.js";
import { element, pause, time } from "/pages/dom.js";

const EVERY_MS = 250;
const MISSES = 8; // what has ended is for a moment neither live nor stored; what was refused is never known

const EMPTY = "Its stages are shown here while it runs.";

/** Shows one request until it has ended, `clear` is called, or `follow` for another. */
export class Timeline {
  constructor({ stages, verdict, legend, id }) {
    this.elements = { stages, verdict, legend, id };
    this.current = null;
  }

  /** There is none, for a reason if not just yet. */
  clear(why = EMPTY) {
    this.current = null;
    this.elements.stages.replaceChildren();
    this.elements.legend.hidden = true;
    this.elements.verdict.textContent = why;
    this.elements.id.textContent = "";
  }

  /** `begun`: of `performance.now()`. `live()`: whether its caller still waits for its answer. */
  async follow(name, begun, live) {
    this.clear("Asking where it is …");
    this.current = name;
    let unknown = "Nothing is known of it: it never began, or is not traced.";
    let last = null;
    for (let missed = 0; missed < MISSES; ) {
      await pause(EVERY_MS); // the server does not know of it at once
      if (this.current !== name) return;
      try {
        const trace = await get(`/v1/requests/${encodeURIComponent(name)}/trace`);
        if (this.current !== name) return;
        last = [trace, performance.now() - begun];
        this.show(...last, trace.state === "ended" ? ENDED : LIVE);
        if (trace.state === "ended") return;
      } catch (problem) {
        if (this.current !== name) return;
        missed += live() ? 0 : 1;
        if (problem.status === 0) unknown = "What became of it is not known: the server does not answer.";
      }
    }
    if (last !== null) this.show(...last, LOST);
    this.elements.verdict.textContent = unknown;
  }

  /** `now`: milliseconds since it was asked; `words`: of stages that have not finished. */
  show(trace, now, words) {
    const until = trace.terminal?.at_ms ?? now;
    const bars = planned(trace).map((name) => row(name, trace.stages[name], until, words));
    this.elements.stages.replaceChildren(...bars);
    this.elements.legend.hidden = false;
    this.elements.verdict.textContent = trace.verdict.text;
    this.elements.id.textContent = `omnizmq trace ${trace.request_id}`;
  }
}

/** The stages that this request needs; of one whose beginning was not traced, all. */
function planned(trace) {
  const received = trace.events.find((fact) => fact.event === "received");
  return received?.stages.split(",") ?? Object.keys(trace.stages);
}

function row(name, stage, until, words) {
  const item = element("li");
  const head = element("div", "name");
  head.append(element("span", "", name), element("small", "muted", told(stage, words)));
  const track = element("div", "track");
  track.setAttribute("aria-hidden", "true");
  const [asked, ready, first, end] = moments(stage, until);
  for (const [kind, from, to] of [
    ["waits", asked, ready],
    ["begins", ready, first],
    ["makes", first, end],
  ]) {
    if (to <= from) continue;
    const bar = element("i", kind);
    bar.style.left = `${(100 * from) / until}%`;
    bar.style.width = `${(100 * (to - from)) / until}%`;
    track.append(bar);
  }
  item.append(head, track);
  return item;
}

/** When it was submitted, had input, gave its first output, ended; what has not come yet is at its end. */
function moments(stage, until) {
  if (stage.submitted_ms === null) return [until, until, until, until];
  const end = stage.finished_ms ?? until;
  const ready = stage.input_ready_ms ?? end;
  return [stage.submitted_ms, ready, stage.first_output_ms ?? end, end];
}

const LIVE = { before: "not begun", waiting: "waits for input", working: "at work", making: "goes on" };
const ENDED = { before: "never begun", waiting: "never had input", working: "ended with it", making: "ended with it" };
const UNKNOWN = "its end is not known";
const LOST = { before: "not begun", waiting: UNKNOWN, working: UNKNOWN, making: UNKNOWN };

function told(stage, words) {
  if (stage.submitted_ms === null) return words.before;
  if (stage.finished_ms !== null) {
    const reason = { stop: "done", length: "done (length)", abort: "aborted" }[stage.finish_reason] ?? "failed";
    return `${first(stage)}${reason} after ${time(stage.finished_ms)}`;
  }
  if (stage.input_ready_ms === null) return words.waiting;
  return stage.first_output_ms === null ? words.working : `${first(stage)}${words.making}`;
}

function first(stage) {
  return stage.first_output_ms === null ? "" : `first output ${time(stage.first_output_ms)}, `;
}
