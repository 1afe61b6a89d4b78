/** The messages of a chat as the server wants them. */
export class Conversation {
  #messages = [];
  #open = [];
  #closed = [];

  /** The next call that waits for its result, or undefined. */
  get openCall() {
    return this.#open[0];
  }

  /** Adds what the user wrote: the result of the open call, if there is one. */
  add(text) {
    const call = this.#open.shift();
    this.#closed = call ? [call] : [];
    this.#messages.push(
      call ? { role: "tool", tool_call_id: call.id, content: text } : { role: "user", content: text },
    );
  }

  /** Adds an answer; with a whole one, its calls wait for results. */
  answer({ content, calls, complete }) {
    const message = { role: "assistant", content };
    if (complete && calls.length > 0) {
      message.tool_calls = calls.map(({ id, name, text }) => ({ id, type: "function", function: { name, arguments: text } }));
      this.#open = [...calls];
    }
    this.#messages.push(message);
  }

  /** Takes back what was added last, since it got no answer; a call that it was the result of is open again. */
  takeBack() {
    this.#messages.pop();
    this.#open.unshift(...this.#closed.splice(0));
  }

  /** The request's list. */
  messages(system) {
    return system ? [{ role: "system", content: system }, ...this.#messages] : [...this.#messages];
  }
}
