// A proxy in front of the server, below a path: it records requests, and can answer chats by a script instead.
import { readFileSync } from 'node:fs';
import http from 'node:http';

export const PREFIX = '/llm/';

export class Front {
  /** All requests since the last `reset`: {method, path, headers, body}. */
  requests = [];
  /** Answers a chat itself unless it returns false: (body, response, request) => boolean | Promise<boolean>. */
  script = null;
  /** Files of the page that are served in place of the server's. */
  dist = null;
  /** After how many bytes the replies to the next chats are cut. */
  cuts = [];
  /** Whether connections are closed unanswered. */
  isDown = false;

  constructor(port) {
    this.port = port;
    this.server = http.createServer((request, response) => void this.#answer(request, response));
  }

  async listen(port) {
    await new Promise((resolve, reject) => {
      this.server.once('error', reject);
      this.server.listen(port, '127.0.0.1', resolve);
    });
    this.own = this.server.address().port;
    this.url = `http://127.0.0.1:${this.own}${PREFIX}`;
  }

  reset(port) {
    this.port = port;
    this.requests = [];
    this.script = null;
    this.cuts = [];
    this.isDown = false;
  }

  /** The bodies of all chats so far. */
  get chats() {
    return this.requests.filter((one) => one.path === '/v1/chat/completions').map((one) => one.body);
  }

  close() {
    this.server.closeAllConnections();
    this.server.close();
  }

  #file(path, response) {
    const file = this.dist.get(path);
    if (!file) return false;
    response.writeHead(200, { 'content-type': file.type, 'content-encoding': 'gzip', 'content-security-policy': POLICY });
    response.end(file.bytes);
    return true;
  }

  async #answer(request, response) {
    if (this.isDown) return request.socket.destroy();
    if (!request.url.startsWith(PREFIX)) {
      // A request outside of the prefix would be another program's.
      this.requests.push({ method: request.method, path: `OUTSIDE ${request.url}`, headers: request.headers });
      response.writeHead(404).end();
      return undefined;
    }
    const parts = [];
    for await (const part of request) parts.push(part);
    const bytes = Buffer.concat(parts);
    const path = request.url.slice(PREFIX.length - 1);
    const isJson = request.headers['content-type']?.includes('json');
    const body = bytes.length && isJson ? JSON.parse(bytes) : undefined;
    const seen = { method: request.method, path, headers: request.headers, body, raw: bytes.toString() };
    this.requests.push(seen);
    if (this.script && path === '/v1/chat/completions' && (await this.script(body, response, seen)) !== false) return undefined;
    if (this.dist && this.#file(path, response)) return undefined;
    const to = { host: '127.0.0.1', port: this.port, path, method: request.method, headers: request.headers };
    const onward = http.request(to, (reply) => {
      response.writeHead(reply.statusCode, reply.headers);
      let rest = (path === '/v1/chat/completions' ? this.cuts.shift() : undefined) ?? Infinity;
      reply.on('data', (part) => {
        if (rest > 0) response.write(part.subarray(0, rest));
        rest -= part.length;
        // The page reads what was written first: an error discards what it has not read.
        if (rest <= 0) setTimeout(() => response.destroy(), 250);
      });
      reply.on('end', () => rest > 0 && response.end());
      reply.on('error', () => response.destroy());
    });
    onward.on('error', () => response.destroy());
    response.on('close', () => onward.destroy());
    onward.end(bytes);
    return undefined;
  }
}

/** The files that the page's build wrote, by their addresses. */
export function built() {
  const folder = new URL('../../hosted/serve/page/dist/', import.meta.url);
  const names = readFileSync(new URL('names.txt', folder), 'utf8').trim().split('\n').map((line) => line.split(' '));
  const types = { js: 'text/javascript', css: 'text/css', svg: 'image/svg+xml', html: 'text/html; charset=utf-8', txt: 'text/plain' };
  const of = ([name, hashed]) => [name === 'index.html' ? '/' : `/page/${hashed}`, {
    bytes: readFileSync(new URL(`${name}.gz`, folder)),
    type: types[name.split('.').at(-1)],
  }];
  return new Map(names.map(of));
}

/** The chunks of a chat as the server writes them, one for each delta. */
export function chunksOf(deltas, { finish = 'stop', seed = 1, timings = {}, fingerprint = 'f1f1f1f1f1-c1', model = 'tale' } = {}) {
  const head = { id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model, system_fingerprint: fingerprint };
  const shown = { ...TIMINGS, ...timings };
  const of = (delta, more = {}) => ({ ...head, choices: [{ index: 0, delta, logprobs: null, finish_reason: null }], ...more });
  const chunks = [of({ role: 'assistant', content: '' })];
  deltas.forEach((delta, i) => chunks.push(of(delta, { timings: { ...shown, predicted_n: i + 1 } })));
  const last = of({}, { seed, timings: { ...shown, predicted_n: deltas.length } });
  last.choices[0].finish_reason = finish;
  chunks.push(last);
  return chunks;
}

/** A text as deltas of words. */
export function words(text, field = 'content') {
  return text.match(/\s*\S+|\s+$/g).map((word) => ({ [field]: word }));
}

/** Streams chunks; `pause` in ms between them; with `ids`, each event has an id; `upTo` breaks the connection. */
export async function stream(response, chunks, { pause = 0, ids = false, from = 0, upTo = Infinity } = {}) {
  if (!response.headersSent) response.writeHead(200, { 'content-type': 'text/event-stream' });
  for (const [i, chunk] of chunks.entries()) {
    if (i < from) continue;
    if (i >= upTo) {
      // What was written is sent first.
      await new Promise((done) => setTimeout(done, 50));
      response.destroy();
      return;
    }
    if (response.destroyed) return;
    response.write(`${ids ? `id: e-${i}\n` : ''}data: ${JSON.stringify(chunk)}\n\n`);
    if (pause) await new Promise((done) => setTimeout(done, pause));
  }
  response.end('data: [DONE]\n\n');
}

/** A script that streams this answer to every chat. */
export function answering(deltas, options = {}) {
  return async (body, response) => {
    await stream(response, chunksOf(deltas, { seed: body.seed, ...options }), options);
    return true;
  };
}

/** The server's own, so that the page is tested under it either way. */
const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
  + "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const TIMINGS = {
  cache_n: 12, prompt_n: 30, prompt_ms: 60, prompt_per_token_ms: 2, prompt_per_second: 500, predicted_n: 0, predicted_ms: 100,
  predicted_per_token_ms: 10, predicted_per_second: 98.7, queued_ms: 1, preempted_n: 0,
};
