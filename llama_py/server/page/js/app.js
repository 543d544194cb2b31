// The page: puts the parts together, and owns which conversation is shown.

import { Api } from "./api.js";
import { exportAll, importAll } from "./backup.js";
import { Chat } from "./chat.js";
import { Conversation, newRecord } from "./conversation.js";
import { Library } from "./media/library.js";
import { systemWithSummary } from "./overflow.js";
import { Prefs } from "./prefs.js";
import { ServerState } from "./server.js";
import { openStore } from "./store.js";
import { Composer } from "./view/composer.js";
import { askForKey, askForSummary, note, showKeys } from "./view/dialogs.js";
import { download, h, icon, iconButton, labelledButton, say } from "./view/dom.js";
import { openSettings } from "./view/settings.js";
import { searchIn, Sidebar } from "./view/sidebar.js";
import { showStart } from "./view/start.js";
import { Thread } from "./view/thread.js";

/** Milliseconds after the last change before a draft or a setting is written. */
const WRITE_AFTER = 400;

// The id of a conversation in an address; what nobody can read names none.
function idIn(hash) {
  try {
    return decodeURIComponent(hash.slice(2));
  } catch {
    return "?";
  }
}

class App {
  #prefs = new Prefs();
  // Everything is relative to this file, so the page works under any path.
  #base = new URL("../../", import.meta.url);
  #api = new Api(this.#base, () => this.#prefs.key);
  #server = new ServerState(this.#api, {
    changed: () => this.#showServer(),
    wantsKey: () => this.#enterKey({ asked: true }),
  });
  #store;
  #library = new Library(() => this.#store);
  #chat;
  #records = [];
  #conversation = null;
  #fresh = null;
  #writing = 0;
  #sidebar;
  #thread;
  #composer;
  #picker = h("input", { type: "file", accept: ".json,application/json", hidden: true });

  async start() {
    this.#applyTheme();
    this.#makeViews();
    const name = `llama-py ${this.#base.pathname}`;
    this.#store = await openStore(name);
    const events = {
      changed: (conversation) => this.#changed(conversation),
      grew: (conversation) => conversation === this.#conversation && this.#grew(),
      ended: (conversation, message) => this.#ended(conversation, message),
      elsewhere: (id) => this.#changedElsewhere(id),
    };
    // As long as the server has not said what there is, the model that was chosen before.
    const model = () => this.#server.model || this.#prefs.get("model");
    const choice = () => ({ model: model(), limit: this.#server.limit });
    const parts = { api: this.#api, store: this.#store, library: this.#library };
    this.#chat = new Chat({ ...parts, name, choice, events });
    this.#records = await this.#store.conversations();
    if (!this.#store.lasting) note("This browser keeps nothing: conversations are gone with the page.");
    addEventListener("hashchange", () => this.#route());
    addEventListener("keydown", (event) => this.#keys(event));
    await this.#route();
    await this.#server.connect(this.#prefs.get("model"));
  }

  #makeViews() {
    this.#sidebar = new Sidebar({
      rename: (id, title) => this.#rename(id, title),
      remove: (id) => this.#remove(id),
      export: (id) => this.#export([id]),
      search: (words, signal) => searchIn(this.#store, this.#records, words, signal),
    });
    this.#thread = new Thread(this.#messageActions());
    this.#composer = new Composer({
      library: this.#library,
      send: (message) => this.#send(message),
      stop: () => this.#chat.stop(this.#conversation),
      editLast: () => this.#editLast(),
      draft: (text) => this.#draft(text),
      chooseModel: (id) => this.#chooseModel(id),
      say: note,
    });
    this.#makeButtons();
  }

  #makeButtons() {
    this.#picker.addEventListener("change", async () => {
      await this.#import(this.#picker.files[0]);
      this.#picker.value = ""; // the same file can be chosen again
    });
    const put = (id, ...children) => document.getElementById(id).append(...children);
    const toggle = () => this.#toggleSidebar();
    put("new", icon("add"), h("span", {}, "New conversation"));
    put("sidebar-close", iconButton("close", "Close the list", () => this.#toggleSidebar(false)));
    put("head-menu", iconButton("menu", "Conversations", toggle, { id: "menu-button" }));
    put("head-actions", iconButton("settings", "Settings", () => this.#settings(), { id: "settings-button" }));
    put("to-end", icon("down"), h("span", {}, "To the latest"));
    put(
      "sidebar-foot",
      this.#picker,
      labelledButton("load", "Import", "Import conversations", () => this.#picker.click()),
      labelledButton("save", "Export", "Export all conversations", () => this.#export(null)),
      iconButton("keyboard", "Keyboard", showKeys),
    );
    const mac = /Mac|iPhone|iPad/.test(navigator.platform);
    document.getElementById("search-key").textContent = mac ? "⌘K" : "Ctrl K";
    document.getElementById("new").addEventListener("click", () => this.#composer.focus());
    document.getElementById("shade").addEventListener("click", () => this.#toggleSidebar(false));
    document.documentElement.classList.toggle("no-sidebar", !this.#prefs.get("sidebar"));
  }

  // -- which conversation -------------------------------------------------------------------------

  async #route() {
    const id = idIn(location.hash);
    const record = this.#records.find((each) => each.id === id);
    if (id && !record) history.replaceState(null, "", "#/");
    if (record && this.#conversation?.id === record.id) return;
    await this.#write();
    this.#conversation = record ? await this.#chat.load(record) : this.#newConversation();
    this.#toggleSidebar(false, true);
    this.#composer.fill(this.#conversation.record.draft);
    this.#show();
    this.#toMessage();
    if (record) await this.#chat.resume(this.#conversation);
  }

  // One that is not kept yet is the same until it is: its draft is not lost by looking elsewhere.
  #newConversation() {
    const { system = "", options = {} } = this.#prefs.get("defaults");
    const draft = this.#prefs.get("draft");
    this.#fresh ??= new Conversation(newRecord({ system, draft, options: structuredClone(options) }));
    return this.#fresh;
  }

  // A conversation is kept from its first message on.
  #adopt() {
    if (this.#conversation !== this.#fresh) return;
    this.#fresh = null;
    this.#prefs.set("draft", "");
    this.#records.unshift(this.#conversation.record);
    history.pushState(null, "", `#/${this.#conversation.id}`);
  }

  // On a screen that is touched, half of it would become a keyboard.
  #toMessage() {
    if (matchMedia("(hover: hover)").matches) this.#composer.focus();
  }

  async #goTo(id) {
    history.pushState(null, "", `#/${id}`);
    await this.#route();
  }

  async #rename(id, title) {
    const record = this.#records.find((each) => each.id === id);
    Object.assign(record, { title, renamed: true });
    await this.#chat.put(record);
    this.#show();
  }

  async #remove(id) {
    await this.#chat.end(id);
    const record = this.#records.find((each) => each.id === id);
    const messages = await this.#store.messages(id);
    await this.#library.hold(messages);
    this.#records = this.#records.filter((each) => each !== record);
    await this.#chat.remove(id);
    this.#api.forgetSession(id).catch(() => {}); // a server without sessions forgets by itself
    if (this.#conversation.id === id) await this.#goTo("");
    else this.#showList();
    note(`“${record.title}” was deleted.`, async () => {
      await this.#chat.put(record, messages);
      this.#records = await this.#store.conversations();
      await this.#goTo(id);
    });
  }

  // -- messages -----------------------------------------------------------------------------------

  #messageActions() {
    const on = (run) => (id, ...rest) => run(this.#conversation, id, ...rest);
    const followed = (run) => on((...args) => this.#followed(run(...args)));
    return {
      library: this.#library,
      say: note,
      choose: on((conversation, id) => this.#choose(conversation, id)),
      again: followed((conversation, id) => this.#chat.again(conversation, id)),
      againWithCertainty: followed((conversation, id) => this.#chat.again(conversation, id, { certain: true })),
      retry: followed((conversation, id) => this.#chat.retry(conversation, id)),
      continue: followed((conversation, id) => this.#chat.continue(conversation, id)),
      answerNow: on((conversation, id) => this.#chat.answerNow(conversation, id)),
      editUser: followed((conversation, id, text) => this.#chat.editUser(conversation, id, text)),
      editReply: on((conversation, id, text, goOn) => this.#editReply(conversation, id, text, goOn)),
      giveResults: followed((conversation, id, results) => this.#chat.giveResults(conversation, id, results)),
      remove: on((conversation, id) => this.#removeMessage(conversation, id)),
      editLast: () => this.#editLast(),
      leaveOut: on((conversation, id) => this.#leaveOut(conversation, id)),
      summarise: on((conversation, id) => this.#summarise(conversation, id)),
      seeAll: () => this.#seeAll(),
      settings: (focus) => this.#settings(focus),
      enterKey: (id) => this.#enterKey({ asked: true, id }),
    };
  }

  #send(message) {
    this.#adopt();
    this.#followed(this.#chat.send(this.#conversation, message));
  }

  // The reply begins within this call; what comes later is reported by events.
  #followed(running) {
    this.#show();
    this.#thread.follow();
    this.#toMessage(); // the button that began it is gone or disabled now
    return running;
  }

  #choose(conversation, id) {
    conversation.choose(id);
    this.#chat.save(conversation);
  }

  async #editReply(conversation, id, text, goOn) {
    await this.#chat.editReply(conversation, id, text);
    if (goOn) this.#followed(this.#chat.continue(conversation, conversation.last.id));
    else this.#toMessage();
  }

  #editLast() {
    const last = this.#conversation.path.findLast((message) => message.role === "user");
    if (last) this.#thread.viewOf(last.id)?.edit();
  }

  async #removeMessage(conversation, id) {
    if (this.#chat.replyOf(conversation.id)) return;
    const removed = conversation.remove(id);
    await this.#library.hold(removed);
    await this.#store.removeMessages(removed);
    await this.#chat.save(conversation);
    note(removed.length > 1 ? `${removed.length} messages were deleted.` : "The message was deleted.", async () => {
      conversation.restore(removed);
      await this.#chat.save(conversation, removed);
    });
  }

  async #leaveOut(conversation, id) {
    const made = await this.#chat.leaveOut(conversation, id);
    if (made) this.#followed();
  }

  #seeAll() {
    this.#conversation.record.firstSeen = null;
    this.#chat.save(this.#conversation);
  }

  async #summarise(conversation, id) {
    const summary = await askForSummary((grew, signal) => this.#chat.summarise(conversation, id, grew, signal));
    if (summary === null) return;
    const { system, options, title } = conversation.record;
    const reply = conversation.get(id);
    const asked = conversation.get(reply.parent);
    const record = newRecord({ system: systemWithSummary(system, summary), options: structuredClone(options) });
    record.title = `${title} (continued)`;
    this.#records.unshift(record);
    await this.#store.save({ records: [record] });
    await this.#goTo(record.id);
    // What was not answered yet is asked again over there.
    if (reply.status === "failed") this.#send({ text: asked.content, files: asked.files, media: asked.media });
  }

  async #enterKey({ asked = false, id } = {}) {
    if (!(await askForKey(this.#prefs, asked))) return;
    await this.#server.connect(this.#prefs.get("model"));
    if (id) this.#followed(this.#chat.retry(this.#conversation, id));
  }

  // -- showing ------------------------------------------------------------------------------------

  #changed(conversation) {
    this.#records.sort((one, other) => other.updated - one.updated);
    if (conversation === this.#conversation) this.#show();
    else this.#showList();
  }

  // What another tab has written is shown here too; what is being typed here stays.
  async #changedElsewhere(id) {
    const stored = (await this.#store.conversations()).find((each) => each.id === id);
    const messages = await this.#store.messages(id);
    if (!this.#conversation || this.#chat.replyOf(id)) return;
    if (!stored) return this.#removedElsewhere(id);
    const own = this.#records.find((each) => each.id === id);
    if (own) Object.assign(own, stored, { draft: own.draft });
    else this.#records.push(stored);
    if (this.#conversation.id === id) this.#conversation = new Conversation(own, messages);
    this.#changed(this.#conversation);
    return undefined;
  }

  async #removedElsewhere(id) {
    const record = this.#records.find((each) => each.id === id);
    if (!record) return;
    this.#records = this.#records.filter((each) => each !== record);
    if (this.#conversation.id !== id) return this.#showList();
    await this.#goTo("");
    note(`“${record.title}” was deleted in another tab.`);
  }

  #show() {
    const conversation = this.#conversation;
    const running = Boolean(this.#chat?.replyOf(conversation.id));
    const title = conversation.record.title || "New conversation";
    say(document.getElementById("title"), title);
    document.title = conversation.record.title ? `${title} · llama_py` : "llama_py";
    document.getElementById("start").hidden = Boolean(conversation.last);
    this.#thread.show(conversation, this.#places());
    this.#composer.show({ running });
    this.#showUse();
    this.#showList();
  }

  #showList() {
    const current = this.#conversation?.id;
    this.#sidebar.show({ records: this.#records, current, running: this.#chat.runningIds });
  }

  /** What the views of the messages are told beside them. */
  #places() {
    const conversation = this.#conversation;
    const { path } = conversation;
    const unseen = new Set(path.slice(0, conversation.firstSeenIn(path)));
    const userMarkdown = this.#prefs.get("userMarkdown");
    const authors = new Set(path.map((message) => message.model).filter(Boolean));
    const namesModel = authors.size > 1 || this.#server.models.length > 1;
    return (message) => {
      const reply = this.#chat.replyOf(conversation.id);
      return {
        siblings: conversation.siblings(message.id),
        reply: reply?.message === message ? reply : undefined,
        busy: Boolean(reply),
        isLast: message.id === conversation.record.leaf,
        unseen: unseen.has(message),
        userMarkdown,
        loads: !this.#server.isLoaded,
        namesModel,
        limit: this.#server.limit,
      };
    };
  }

  #grew() {
    this.#thread.grew();
    this.#announce();
  }

  // What is heard is that something happens, not every word of it.
  #announce() {
    const phase = this.#chat.replyOf(this.#conversation.id)?.phase;
    const texts = { prompt: "Processing the prompt", thinking: "Thinking", writing: "Generating" };
    if (texts[phase]) say(document.getElementById("status"), texts[phase]);
  }

  #ended(conversation, message) {
    if (message.status === "done") this.#server.noteReply();
    if (conversation !== this.#conversation) return this.#showList();
    this.#show();
    const texts = { done: "Reply complete", stopped: "Reply stopped", failed: "" };
    say(document.getElementById("status"), texts[message.status] ?? "");
    if (["unreachable", "broken"].includes(message.error?.kind)) this.#server.lost();
    return undefined;
  }

  #showUse() {
    const last = this.#conversation.path.findLast((message) => message.usage?.prompt);
    const used = last ? last.usage.prompt + (last.usage.reply ?? 0) : 0;
    this.#composer.showUse(used, this.#server.limit);
  }

  #showServer() {
    const { models, model, words, reads } = this.#server;
    this.#composer.showModels(models, model);
    this.#composer.showReads(reads);
    showStart(document.getElementById("start"), model, (starter) => this.#begin(starter), this.#server.hint);
    say(document.getElementById("banner"), words);
    if (this.#conversation) this.#show();
  }

  #begin({ text, tools }) {
    if (tools) this.#conversation.record.options.tools = tools;
    this.#send({ text });
  }

  #chooseModel(id) {
    this.#prefs.set("model", id);
    this.#server.choose(id);
  }

  #toggleSidebar(open, quietly = false) {
    const root = document.documentElement;
    if (matchMedia("(max-width: 50rem)").matches) {
      const shown = open ?? !root.classList.contains("sidebar-open");
      root.classList.toggle("sidebar-open", shown);
      document.getElementById("shade").hidden = !shown;
      document.getElementById("main").inert = shown;
      // Not the search: its keyboard would cover half of the list.
      if (shown) document.getElementById("new").focus();
      else if (!quietly) document.getElementById("menu-button").focus();
    } else if (!quietly) {
      const hidden = root.classList.toggle("no-sidebar", open === undefined ? undefined : !open);
      this.#prefs.set("sidebar", !hidden);
    }
  }

  #applyTheme() {
    const theme = this.#prefs.get("theme");
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }

  // -- settings, files, keys ----------------------------------------------------------------------

  #settings(focus) {
    const { record } = this.#conversation;
    openSettings({
      record,
      prefs: this.#prefs,
      defaults: this.#server.defaults,
      focus,
      actions: {
        changed: () => this.#writeSoon(),
        changedPage: () => {
          this.#applyTheme();
          this.#show();
        },
        enterKey: () => this.#enterKey(),
        exportAll: () => this.#export(null),
        importAll: () => this.#picker.click(),
        sessions: () => this.#api.sessions(),
        forgetSession: (id) => this.#api.forgetSession(id),
        keepDefaults: () => {
          this.#prefs.set("defaults", { system: record.system, options: record.options });
          note("New conversations begin with these settings.");
        },
      },
    });
  }

  #draft(text) {
    this.#conversation.record.draft = text;
    if (this.#conversation === this.#fresh) this.#prefs.set("draft", text);
    else this.#writeSoon();
  }

  #writeSoon() {
    clearTimeout(this.#writing);
    this.#writing = setTimeout(() => this.#write(), WRITE_AFTER);
  }

  async #write() {
    clearTimeout(this.#writing);
    const record = this.#conversation?.record;
    if (record && this.#records.includes(record)) await this.#store.save({ records: [record] });
  }

  async #export(ids) {
    const day = new Date().toISOString().slice(0, 10);
    const record = ids && this.#records.find((each) => each.id === ids[0]);
    const name = record ? record.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) : `conversations-${day}`;
    download(`llama-py-${name}.json`, await exportAll(this.#store, ids));
  }

  async #import(file) {
    try {
      const { added, known } = await importAll(this.#store, await file.text());
      this.#records = await this.#store.conversations();
      this.#showList();
      note(`${added} added${known ? `, ${known} were here already` : ""}.`);
    } catch (error) {
      note(error.message);
    }
  }

  #keys(event) {
    const command = event.ctrlKey || event.metaKey;
    const inField = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    const modal = document.querySelector("dialog[open]");
    if (event.key === "Escape" && !modal) this.#escape();
    else if (modal) return;
    else if (command && event.key === "k") {
      event.preventDefault();
      this.#toggleSidebar(true);
      this.#sidebar.focusSearch();
    } else if (command && event.shiftKey && event.key.toLowerCase() === "o") {
      event.preventDefault();
      this.#goTo("");
    } else if (command && event.key === ",") {
      event.preventDefault();
      this.#settings();
    } else if (event.key === "?" && !inField) showKeys();
  }

  #escape() {
    if (document.documentElement.classList.contains("sidebar-open")) this.#toggleSidebar(false);
    else this.#chat.stop(this.#conversation);
  }
}

new App().start();
