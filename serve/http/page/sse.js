/** Server-sent events out of text that may be cut anywhere, also between the two halves of a line end. */
export class EventParser {
  #rest = "";
  #afterReturn = false;
  #type = "";
  #data = [];

  /** The events that this text completes, each `{type, data}`. */
  feed(text) {
    const events = [];
    for (const line of this.#lines(text)) {
      if (line !== "") {
        this.#field(line);
        continue;
      }
      if (this.#data.length > 0) events.push({ type: this.#type || "message", data: this.#data.join("\n") });
      this.#type = "";
      this.#data = [];
    }
    return events;
  }

  #lines(text) {
    if (text === "") return [];
    if (this.#afterReturn && text.startsWith("\n")) text = text.slice(1);
    this.#afterReturn = text.endsWith("\r");
    const lines = (this.#rest + text).split(/\r\n|\r|\n/);
    this.#rest = lines.pop();
    return lines;
  }

  #field(line) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    // A line that begins with a colon is a comment: its name is empty.
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#type = value;
  }
}

/** The events of a response's body, as they arrive. */
export async function* eventsOf(body) {
  const parser = new EventParser();
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.feed(value);
    }
  } finally {
    // Whoever stops reading also ends the request.
    reader.cancel().catch(() => {});
  }
}
