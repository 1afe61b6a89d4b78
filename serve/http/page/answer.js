import { Acceptance } from "./acceptance.js";
import { element } from "./dom.js";
import { number, speed } from "./meter.js";
import { Prose } from "./prose.js";

/** One answer on the page, as it arrives. Everything of the model's is put in as text. */
export class Answer {
  acceptance = new Acceptance();
  calls = [];
  content = "";
  #finish = null;
  #usage = null;
  #text = new Prose();
  #thought = new Prose();
  #thinking = element("details", { class: "thinking", hidden: "" }, element("summary", {}, "Thinking…"), this.#thought.node);
  #tools = element("div", { class: "tools" });
  #tokens = element("div", { class: "tokens" });
  #facts = element("p", { class: "facts" });

  constructor() {
    const parsed = element("div", { class: "parsed" }, this.#thinking, this.#text.node, this.#tools);
    this.node = element("article", { class: "answer", "aria-label": "Answer", "aria-busy": "true" });
    this.node.append(parsed, this.#tokens, this.#facts);
  }

  /** Whether anything was answered. */
  get empty() {
    return this.acceptance.tokens === 0 && this.content === "" && this.calls.length === 0;
  }

  /** Adds a chunk of the stream; `now` is in milliseconds. */
  add(chunk, now) {
    const choice = chunk.choices?.[0];
    if (choice) {
      this.#delta(choice.delta ?? {});
      this.#origins(choice.token_origins ?? [], now);
      this.#finish = choice.finish_reason ?? this.#finish;
    }
    this.#usage = chunk.usage ?? this.#usage;
    const figures = chunk.metrics?.speculative_decoding;
    if (figures) this.acceptance.report(figures);
  }

  /** The stream is over: `how` is "complete", "stopped" or "failed". */
  end(how) {
    this.node.setAttribute("aria-busy", "false");
    if (!this.#thinking.hidden) this.#name("Thought");
    for (const call of this.calls) call.node.textContent = pretty(call.text);
    const { acceptance } = this;
    const usage = this.#usage;
    const facts = [`${plural(usage?.completion_tokens ?? acceptance.tokens, "token")}`];
    if (usage) {
      const cached = usage.prompt_tokens_details?.cached_tokens;
      facts.push(`prompt of ${usage.prompt_tokens}${cached ? `, ${cached} of them cached` : ""}`);
    }
    if (acceptance.tokensPerSecond !== null) facts.push(`${speed(acceptance.tokensPerSecond)} tokens/s`);
    if (acceptance.tokensPerCycle !== null) facts.push(`${number(acceptance.tokensPerCycle, 2)} tokens per cycle`);
    if (how === "stopped") facts.push("stopped");
    else if (this.#finish === "length") facts.push("cut at the limit of tokens");
    this.#facts.textContent = this.empty && how !== "complete" ? (how === "stopped" ? "stopped" : "") : facts.join(" · ");
  }

  /** Shows what went wrong. */
  fail(message) {
    this.node.append(element("p", { class: "error", role: "alert" }, message));
  }

  #delta(delta) {
    if (delta.reasoning_content) {
      this.#thinking.hidden = false;
      this.#thought.append(delta.reasoning_content);
    }
    if (delta.content) {
      this.content += delta.content;
      this.#text.append(delta.content);
      this.#name("Thought");
    }
    for (const part of delta.tool_calls ?? []) this.#call(part);
  }

  #call({ index, id, function: part }) {
    this.#name("Thought");
    let call = this.calls[index];
    if (!call) {
      call = this.calls[index] = { id, name: part?.name ?? "", text: "", node: element("pre") };
      const title = element("p", {}, "Calls ", element("code", {}, call.name));
      this.#tools.append(element("div", { class: "call" }, title, call.node));
    }
    call.text += part?.arguments ?? "";
    call.node.append(part?.arguments ?? "");
  }

  #origins(origins, now) {
    this.acceptance.add(origins, now);
    this.#tokens.append(...origins.map(({ text, origin }) => element("span", { class: `token ${origin}` }, text)));
  }

  #name(text) {
    this.#thinking.firstChild.textContent = text;
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}
