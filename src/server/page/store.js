// Where conversations last: one record each in the browser's IndexedDB, and all of them in memory. Without a database (a
// private window) they last as long as the page. Tabs tell each other what changed, so that none writes over another's.

const store = {
  all: new Map(), // by id
  database: null,
  channel: null,

  // changed(id): another tab wrote or deleted this one.
  async open(changed) {
    try {
      this.database = await new Promise((resolve, reject) => {
        const request = indexedDB.open("espalier", 1);
        request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
        request.onsuccess = () => resolve(request.result);
        request.onerror = () => reject(request.error);
        request.onblocked = () => reject(new Error("another tab holds the conversations"));
      });
      const kept = await this.run("readonly", (records) => records.getAll());
      for (const conversation of kept) if (is_conversation(conversation)) this.all.set(conversation.id, conversation);
      this.channel = new BroadcastChannel("espalier");
      this.channel.onmessage = async ({ data: id }) => { await this.read(id); changed(id); };
    } catch (error) {
      this.database = null;
      say(`Conversations last until this page closes: ${error.message}`, true);
    }
  },

  run(mode, ask) {
    return new Promise((resolve, reject) => {
      const transaction = this.database.transaction("conversations", mode);
      const request = ask(transaction.objectStore("conversations"));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
  },

  async put(conversation) {
    this.all.set(conversation.id, conversation);
    await this.write(conversation.id, (records) => records.put(conversation));
  },

  async remove(id) {
    this.all.delete(id);
    await this.write(id, (records) => records.delete(id));
  },

  async read(id) {
    const kept = await this.run("readonly", (records) => records.get(id));
    if (is_conversation(kept)) this.all.set(id, kept);
    else this.all.delete(id);
  },

  async write(id, ask) {
    if (!this.database) return;
    try {
      await this.run("readwrite", ask);
      this.channel.postMessage(id);
    } catch (error) { say(`The browser did not keep this: ${error.message}`, true); }
  },

  newest_first() { return [...this.all.values()].sort((a, b) => b.changed - a.changed); },
};
