// The page's side of PROTOCOL.md. A token from the fragment, no cookies.

/** What the server refused: a sentence, and what helps. */
export class Refused extends Error {
  constructor(status, message, hint = null) {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

/** Nobody answers at its address. */
export class Gone extends Error {
  constructor() {
    super("the server of this page does not answer");
    this.hint = "start `lq playground` again, and open the address that it prints; until then the text is kept as a draft, and Share has it as a file";
  }
}

const WAITS_MS = [100, 300, 1000, 2000, 4000, 8000];

export class Server {
  constructor(token) {
    this._token = token;
  }

  get(path) {
    return this._json("GET", path);
  }

  post(path, body) {
    return this._json("POST", path, body);
  }

  put(path, body) {
    return this._json("PUT", path, body);
  }

  delete(path) {
    return this._json("DELETE", path);
  }

  async report(run) {
    return (await this._ask("GET", `/api/runs/${run}/report`)).blob();
  }

  /** The lines of a run after `after`, as texts; goes on where a connection is lost, and raises Gone where it stays so.
   * Ends where `isWhole` says so. */
  async *lines(run, after, isWhole, onLost) {
    let failures = 0;
    while (!isWhole()) {
      try {
        const answer = await this._ask("GET", `/api/runs/${run}/events?after=${after()}`);
        for await (const line of linesOf(answer.body)) {
          failures = 0;
          if (line) yield line;
        }
      } catch (error) {
        if (error instanceof Refused) throw error;
      }
      if (isWhole()) return;
      if (failures === WAITS_MS.length) throw new Gone();
      const wait = WAITS_MS[failures];
      failures += 1;
      if (failures > 1) onLost(failures);
      await new Promise((done) => setTimeout(done, wait));
    }
  }

  async _json(method, path, body) {
    return (await this._ask(method, path, body)).json();
  }

  async _ask(method, path, body) {
    const headers = { Authorization: `Bearer ${this._token}` };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const answer = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "omit",
      cache: "no-store",
    }).catch(() => {
      throw new Gone();
    });
    if (answer.ok) return answer;
    const said = await answer.json().catch(() => ({}));
    throw new Refused(answer.status, said.error?.message ?? `the server answered ${answer.status}`, said.error?.hint);
  }
}

/** The lines of a body that comes piece by piece; a last line without its end is left out: it was cut off. */
export async function* linesOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield* lines;
  }
}
