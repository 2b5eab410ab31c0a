// What the pages share of showing things: elements, and words in them.

/** The page's element with this id. */
export const at = (id) => document.getElementById(id);

/** An element with a class and a text. */
export function element(tag, kind = "", text = "") {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (text) made.textContent = text;
  return made;
}

/** A table's row; its first cell heads it. */
export function row(name, cells) {
  const made = element("tr");
  const head = element("th", "", name);
  head.scope = "row";
  made.append(head, ...cells);
  return made;
}

/** Shows a text there. The same text stays as it is: else a screen reader would say it again. */
export function say(id, text) {
  if (at(id).textContent !== text) at(id).textContent = text;
}

/** Shows what went wrong; null: nothing does any more. That a key is wanted is said where it is asked for. */
export function complain(problem) {
  if (problem?.asksForKey) problem = null;
  at("problem").hidden = problem === null;
  say("problem", problem?.message ?? "");
}

/** Milliseconds, as a reader has them. */
export function time(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** Done after so many milliseconds. */
export function pause(ms) {
  return new Promise((wake) => setTimeout(wake, ms));
}
