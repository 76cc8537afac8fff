// The server's API, as this page uses it. An error has the server's own sentence.

const api = {
  key: sessionStorage.getItem("espalier-key") || "",

  headers(more) {
    return this.key ? { ...more, Authorization: `Bearer ${this.key}` } : { ...more };
  },

  async check(response) {
    if (response.ok) return response;
    let message = `${response.status} ${response.statusText}`;
    try { message = (await response.json()).error.message || message; } catch { /* no JSON: the status says it */ }
    throw Object.assign(new Error(message), { status: response.status });
  },

  async get(path) { return this.check(await fetch(path, { headers: this.headers() })); },

  async post(path, body, signal) {
    return this.check(await fetch(path, {
      method: "POST", headers: this.headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal }));
  },

  // Yields the objects of a stream of server-sent events until [DONE].
  async *stream(path, body, signal) {
    const response = await this.post(path, body, signal);
    const decoder = new TextDecoder();
    const reader = response.body.getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const events = rest.split("\n\n");
      rest = events.pop();
      for (const event of events) {
        signal?.throwIfAborted(); // what came with the last read is not shown either
        if (!event.startsWith("data:")) continue; // a comment keeps the connection open
        const data = event.slice(5).trim();
        if (data === "[DONE]") return;
        const object = JSON.parse(data);
        if (object.error) throw new Error(object.error.message);
        yield object;
      }
    }
  },
};
