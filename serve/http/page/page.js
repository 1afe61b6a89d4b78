import { Answer } from "./answer.js";
import { chatChunks, modelName, whyNotReady } from "./api.js";
import { Conversation } from "./conversation.js";
import { element } from "./dom.js";
import { Meter } from "./meter.js";
import { Settings } from "./settings.js";

const POLL = 1000;
const at = (id) => document.getElementById(id);
const log = at("conversation");
const box = at("message");
const meter = new Meter();
const settings = new Settings(at("options"));
let conversation = new Conversation();
let model = null;
let running = null;
let following = true;
let shown = null;

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
at("stop").addEventListener("click", () => running?.abort());
at("new-chat").addEventListener("click", newChat);
at("by-origin").addEventListener("change", showOrigins);
at("options").key.addEventListener("change", greet);
log.addEventListener("scroll", () => {
  following = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
});
box.addEventListener("input", fit);
box.addEventListener("keydown", (event) => {
  // Enter also ends the choice of a character in an input method.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});

at("settings").open = matchMedia("(min-width: 60rem)").matches;
showOrigins();
greet();

async function submit() {
  const text = box.value;
  if (running || text.trim() === "") return;
  if (!settings.check()) {
    at("settings").open = true;
    settings.check();
    return;
  }
  box.value = "";
  fit();
  const call = conversation.openCall;
  conversation.add(text);
  at("welcome")?.remove();
  log.append(
    element("article", { class: call ? "question result" : "question", "aria-label": call ? "Result" : "Question" }, text),
  );
  if (conversation.openCall) prompt();
  else await respond(text);
}

async function respond(text) {
  const answer = new Answer();
  const controller = new AbortController();
  const chat = conversation;
  log.append(answer.node);
  begin(controller);
  let how = "complete";
  try {
    model ??= await modelName(settings.key);
    showModel();
    const request = { model, messages: chat.messages(settings.system), token_origins: true, ...settings.fields() };
    for await (const chunk of chatChunks(request, settings.key, controller.signal)) {
      answer.add(chunk, performance.now());
      refresh(answer);
    }
  } catch (error) {
    how = controller.signal.aborted ? "stopped" : "failed";
    if (how === "failed") answer.fail(error.message);
    if (error.status === 401) askForKey();
  }
  answer.end(how);
  if (answer.empty && how !== "complete") giveBack(chat, text);
  else chat.answer({ content: answer.content, calls: answer.calls, complete: how === "complete" });
  if (running === controller) finish(how);
}

/** What got no answer is no part of the conversation, and stands in the box again. */
function giveBack(chat, text) {
  chat.takeBack();
  if (chat !== conversation || box.value !== "") return;
  box.value = text;
  fit();
}

function begin(controller) {
  running = controller;
  at("send").hidden = true;
  at("stop").hidden = false;
  at("status").textContent = "Answering…";
  // On a touch screen the focus would open the keyboard over the answer.
  if (matchMedia("(hover: hover)").matches) box.focus();
  following = true;
  follow();
}

function finish(how) {
  running = null;
  at("send").hidden = false;
  at("stop").hidden = true;
  at("status").textContent = { complete: "", stopped: "Stopped.", failed: "" }[how];
  prompt();
  follow();
}

function newChat() {
  running?.abort();
  finish("complete");
  conversation = new Conversation();
  log.replaceChildren();
  prompt();
  box.focus();
}

/** The box asks for a message, or for the result of a call. */
function prompt() {
  const call = conversation.openCall;
  at("message-label").textContent = call ? `Result of ${call.name}` : "Message";
}

function showOrigins() {
  log.classList.toggle("by-origin", at("by-origin").checked);
}

function showModel() {
  at("model").textContent = model;
}

/** Asks who is there, and waits while the server warms up. */
async function greet() {
  try {
    for (let why = await whyNotReady(); why !== null; why = await whyNotReady()) {
      at("status").textContent = `${why} …`;
      await new Promise((resolve) => setTimeout(resolve, POLL));
    }
    model = await modelName(settings.key);
    showModel();
    if (!running) at("status").textContent = "";
  } catch (error) {
    at("status").textContent = error.message;
    if (error.status === 401) askForKey();
  }
}

function askForKey() {
  at("settings").open = true;
  at("options").key.focus();
}

/** Shows the figures of an answer, and its end: once per frame, however many chunks come in between. */
function refresh(answer) {
  if (shown === null) {
    requestAnimationFrame(() => {
      meter.show(shown.acceptance);
      follow();
      shown = null;
    });
  }
  shown = answer;
}

/** Keeps the end in sight, unless the reader scrolled away from it. */
function follow() {
  if (following) log.scrollTop = log.scrollHeight;
}

/** The box grows with its text, up to the limit of the style sheet. */
function fit() {
  box.rows = Math.min(8, box.value.split("\n").length);
}
