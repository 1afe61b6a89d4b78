import { shape } from "./dom.js";

const WIDTH = 240;
const HEIGHT = 56;
const SHOWN = 40;
const STEP = WIDTH / SHOWN;

/** Shows the acceptance of the answer that runs, or of the last one. */
export class Meter {
  #at = (id) => document.getElementById(id);

  show(acceptance) {
    const { counts, cycles, cut, final } = acceptance;
    const rate = final ? acceptance.acceptRate : acceptance.draftedShare;
    this.#at("tokens-per-cycle").textContent = number(acceptance.tokensPerCycle, 2);
    this.#at("rate-name").textContent = final ? "drafts accepted" : "of the text drafted";
    this.#at("accept-rate").textContent = rate === null ? "–" : `${number(100 * rate, 0)} %`;
    this.#at("speed").textContent = speed(acceptance.tokensPerSecond);
    for (const origin of Object.keys(counts)) this.#at(`count-${origin}`).textContent = counts[origin];
    this.#draw([...cycles, ...cut].slice(-SHOWN));
  }

  #draw(cycles) {
    const most = Math.max(8, ...cycles.map((cycle) => cycle.accepted + 1));
    const unit = HEIGHT / most;
    const bars = cycles.map(({ accepted, end }, index) => {
      const x = index * STEP;
      const bar = (place, tokens, origin) =>
        shape("rect", { x, y: HEIGHT - (place + tokens) * unit, width: STEP - 1.5, height: tokens * unit, class: origin });
      const group = shape("g", {}, bar(0, accepted, "draft"));
      if (end !== null) group.append(bar(accepted, 1, end));
      group.append(shape("title", {}, `${accepted} accepted${end === null ? "" : `, then a ${end} token`}`));
      return group;
    });
    this.#at("cycles").replaceChildren(...bars);
  }
}

/** Tokens per second; a dash for none. */
export function speed(value) {
  return number(value, value !== null && value < 100 ? 1 : 0);
}

/** A number with so many digits after the point; a dash for none. */
export function number(value, digits) {
  return value === null ? "–" : value.toFixed(digits);
}
