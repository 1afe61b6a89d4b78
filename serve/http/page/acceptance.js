/** Speculative cycles of one answer, read off the origins of its tokens. */
export class Acceptance {
  counts = { draft: 0, correction: 0, bonus: 0 };
  /** Each finished cycle: how many drafts were accepted, and the origin of the token that ended it. */
  cycles = [];
  #drafts = 0;
  #tokens = 0;
  #reported = null;
  #first = null;
  #last = null;

  /** Adds the tokens of a chunk; `now` is in milliseconds. */
  add(origins, now) {
    for (const { origin } of origins) {
      this.counts[origin] += 1;
      this.#tokens += 1;
      if (origin === "draft") this.#drafts += 1;
      // The token after the prompt is the target's, and belongs to no cycle.
      else if (this.#tokens > 1) {
        this.cycles.push({ accepted: this.#drafts, end: origin });
        this.#drafts = 0;
      }
    }
    if (origins.length === 0) return;
    this.#last = { tokens: this.#tokens, now };
    this.#first ??= this.#last;
  }

  /** The server's own figures, which also count the proposals that were refused. */
  report(figures) {
    this.#reported = figures;
  }

  /** The cycle that ended with the answer, in the middle of its drafts, if one did. */
  get cut() {
    return this.#drafts > 0 ? [{ accepted: this.#drafts, end: null }] : [];
  }

  get tokens() {
    return this.#tokens;
  }

  /** Whether the server's own figures are there. */
  get final() {
    return this.#reported !== null;
  }

  /** Mean tokens of a cycle: the server's figure, before that the one of the cycles so far; null without a cycle. */
  get tokensPerCycle() {
    if (this.#reported) return this.#reported.mean_acceptance_length ?? null;
    if (this.cycles.length === 0) return null;
    return 1 + this.cycles.reduce((sum, cycle) => sum + cycle.accepted, 0) / this.cycles.length;
  }

  /** Accepted part of all proposals, which only the server knows. */
  get acceptRate() {
    return this.#reported?.draft_acceptance_rate ?? null;
  }

  /** Part of the tokens that the drafter proposed. */
  get draftedShare() {
    return this.#tokens ? this.counts.draft / this.#tokens : null;
  }

  /** Tokens after the first chunk by the time they took; null before a second chunk. */
  get tokensPerSecond() {
    const milliseconds = this.#first ? this.#last.now - this.#first.now : 0;
    return milliseconds > 0 ? (1000 * (this.#last.tokens - this.#first.tokens)) / milliseconds : null;
  }
}
