import { element } from "./dom.js";

const FENCE = /^\s*(```|~~~)/;

/** Text that arrives in pieces; lines between two fences are set as code. */
export class Prose {
  node = element("div", { class: "text" });
  #line = new Text();
  #code = null;

  constructor() {
    this.node.append(this.#line);
  }

  append(text) {
    const [first, ...rest] = text.split("\n");
    this.#line.appendData(first);
    for (const start of rest) {
      this.#endLine();
      this.#line.appendData(start);
    }
  }

  #endLine() {
    const fence = FENCE.exec(this.#line.data)?.[1];
    if (this.#code ? fence === this.#code.fence : fence) {
      this.#code = this.#code ? null : { fence, node: element("code") };
      if (this.#code) this.node.append(element("pre", {}, this.#code.node));
      this.#line.remove();
    } else this.#line.appendData("\n");
    this.#line = new Text();
    (this.#code?.node ?? this.node).append(this.#line);
  }
}
