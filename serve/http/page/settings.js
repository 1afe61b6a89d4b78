/** The form of settings. An empty field is not sent: the server decides. */
export class Settings {
  #form;

  constructor(form) {
    this.#form = form;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.tools.addEventListener("input", () => this.#checkTools());
  }

  get key() {
    return this.#form.key.value.trim();
  }

  get system() {
    return this.#form.system.value.trim();
  }

  /** Shows what is wrong, if anything is. */
  check() {
    return this.#form.reportValidity();
  }

  /** Fields of a request. */
  fields() {
    const form = this.#form;
    const fields = { chat_template_kwargs: { enable_thinking: form.thinking.checked } };
    for (const name of ["temperature", "max_tokens", "seed"]) {
      if (form[name].value !== "") fields[name] = form[name].valueAsNumber;
    }
    const tools = form.tools.value.trim();
    if (tools !== "") fields.tools = JSON.parse(tools);
    return fields;
  }

  #checkTools() {
    const text = this.#form.tools.value.trim();
    let fault = "";
    try {
      if (text !== "" && !Array.isArray(JSON.parse(text))) fault = "Wanted a JSON list of tools, such as [{…}].";
    } catch (error) {
      fault = `This is no JSON: ${error.message}`;
    }
    this.#form.tools.setCustomValidity(fault);
  }
}
