// The bridge's API as the pages use it: one shape for all that goes wrong, and an answer's events.

const KEY = "omnizmq-key";
const ANSWER_MS = 10_000; // a server that takes longer for a document cannot be reached: the bridge waits 2 s for its router

/** What the reader should be told. `status`: 0 where no server answered; `id`: of the request that it is about. */
export class Problem extends Error {
  constructor(message, status = 0, code = null, id = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.id = id;
  }

  /** Nothing is wrong yet: the server wants a key, and none was given. */
  get asksForKey() {
    return this.status === 401 && !key();
  }
}

/** The API key of this tab; empty: none. */
export function key() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function keepKey(text) {
  sessionStorage.setItem(KEY, text);
}

/** The answer. Throws `Problem`, and `AbortError` where `signal` ended it. */
export async function ask(path, { body, headers = {}, signal } = {}) {
  const sent = { ...headers };
  // A header is sent as Latin-1: so these are the key's bytes in UTF-8.
  if (key()) sent.authorization = `Bearer ${String.fromCharCode(...new TextEncoder().encode(key()))}`;
  if (body !== undefined) sent["content-type"] = "application/json";
  const init = { method: body === undefined ? "GET" : "POST", headers: sent, signal, cache: "no-store" };
  if (body !== undefined) init.body = JSON.stringify(body);
  let answer;
  try {
    answer = await fetch(path, init);
  } catch (error) {
    throw lost(error);
  }
  if (!answer.ok) throw await refused(answer);
  return answer;
}

/** A JSON document, within `ANSWER_MS`. Throws `Problem`. */
export async function get(path) {
  try {
    return await (await ask(path, { signal: AbortSignal.timeout(ANSWER_MS) })).json();
  } catch (error) {
    throw lost(error);
  }
}

/** The documents of an answer's server-sent events, until `[DONE]`. Throws as `ask` does. */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Problem("The answer broke off.");
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.replace(/^data: /, "");
        if (data === "[DONE]") return;
        const document = JSON.parse(data);
        if (document.error) throw new Problem(document.error.message, answer.status, document.error.code);
        yield document;
      }
    }
  } catch (error) {
    throw lost(error);
  } finally {
    reader.cancel().catch(() => {});
  }
}

function lost(error) {
  if (error instanceof Problem || error.name === "AbortError") return error;
  return new Problem("The server does not answer. Is the deployment running?");
}

async function refused(answer) {
  const error = await answer.json().then((document) => document.error, () => null);
  const message = error?.message ?? `The server answered with status ${answer.status}.`;
  const id = answer.headers.get("x-request-id");
  return new Problem(told(answer.status, message), answer.status, error?.code ?? null, id);
}

function told(status, message) {
  if (status === 401) return `The server wants an API key${key() ? ", and this is not one of its keys" : ""}.`;
  if (status === 429) return `The server has no room at present: ${message}. Ask again in a moment.`;
  return message;
}
