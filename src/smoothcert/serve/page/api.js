/* Calls of the server. A key is asked for when the server wants one, and is kept in memory only. */
import { byId } from "./dom.js";

let key = null;

/* An error whose message the server wrote for people, in one sentence. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/* Send a request and return its response; raise a ServerError unless it succeeded. */
export async function call(path, { headers = {}, ...options } = {}) {
  for (;;) {
    const used = key;
    const authorization = used === null ? {} : { Authorization: `Bearer ${used}` };
    const response = await reach(path, { ...options, headers: { ...headers, ...authorization } });
    if (response.status !== 401) return checked(response);
    if (key === used) await askKey(await sentence(response)); // otherwise another call has got a new one
  }
}

export const getJson = async (path, options) => (await call(path, options)).json();

/* Read server-sent events of a response as [name, text]. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await read(reader);
    if (done) return;
    waiting = (waiting + value).replace(/\r\n/g, "\n");
    const blocks = waiting.split("\n\n");
    waiting = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n");
      const field = (name) => lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).trimStart());
      if (field("data").length) yield [field("event")[0] ?? "message", field("data").join("\n")];
    }
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The connection ended before the answer; try again.");
  }
}

async function reach(path, options) {
  try {
    return await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached; see whether it still runs.");
  }
}

async function checked(response) {
  if (!response.ok) throw new ServerError(await sentence(response), response.status);
  return response;
}

async function sentence(response) {
  try {
    return (await response.json()).error ?? `The server answered with status ${response.status}.`;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

let asking = null;

/* Ask for a key once, however many calls wait for it. */
function askKey(reason) {
  asking ??= new Promise((resolve, reject) => {
    const dialog = byId("key-dialog");
    byId("key-reason").textContent = reason;
    byId("key").value = "";
    dialog.returnValue = "";
    dialog.onclose = () => {
      asking = null;
      if (dialog.returnValue !== "use") return reject(new ServerError("The server needs an API key."));
      key = byId("key").value.trim();
      byId("key").value = "";
      return resolve();
    };
    dialog.showModal();
  });
  return asking;
}
