import { eventsOf } from "./sse.js";

/** What the server answered instead of a result; the message is for the user. */
export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The name of the model that is served. */
export async function modelName(key) {
  const response = await send("v1/models", { headers: headers(key) });
  const list = await response.json();
  return list.data[0].id;
}

/** Why the server takes no requests yet; null when it does. Throws when it cannot be reached. */
export async function whyNotReady() {
  const response = await reach("ready", {});
  if (response.ok) return null;
  return messageOf(await response.json().catch(() => null)) ?? "the server is not ready";
}

/** The chunks of a streamed chat completion. Throws ServerError, also for an error in the middle of the stream. */
export async function* chatChunks(request, key, signal) {
  const body = JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } });
  const response = await send("v1/chat/completions", {
    method: "POST",
    headers: { ...headers(key), "Content-Type": "application/json" },
    body,
    signal,
  });
  try {
    for await (const event of eventsOf(response.body)) {
      if (event.data === "[DONE]") return;
      const chunk = JSON.parse(event.data);
      if (chunk.error || event.type === "error") throw new ServerError(messageOf(chunk) ?? "The server failed.");
      yield chunk;
    }
  } catch (error) {
    if (error instanceof TypeError) throw new ServerError("The connection broke before the answer was complete.");
    if (error instanceof SyntaxError) throw new ServerError("The server sent something that is no JSON.");
    throw error;
  }
  throw new ServerError("The connection ended before the answer was complete.");
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** A response with a good status; everything else is thrown. */
async function send(path, options) {
  const response = await reach(path, options);
  if (response.ok) return response;
  const text = await response.text();
  let message;
  try {
    message = messageOf(JSON.parse(text));
  } catch {
    message = text.trim().slice(0, 500);
  }
  const after = response.headers.get("Retry-After");
  const again = /^\d+$/.test(after ?? "") ? `; try again in ${after} s` : "";
  throw new ServerError(`${message || "The server refused the request."} (HTTP ${response.status}${again})`, response.status);
}

async function reach(path, options) {
  try {
    return await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached.");
  }
}

function messageOf(body) {
  const error = body?.error ?? body;
  return typeof error === "string" ? error : error?.message;
}
