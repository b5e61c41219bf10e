/** Requests to the server that the page came from, and to no other. */
import { signal } from '@preact/signals';
import { readLocal, writeLocal } from '../data/local';

/** Where the server's routes begin: a proxy may have put them below a path. */
export const base = new URL('./', location.href.split('#')[0]);

const KEY = `sluice.key${base.pathname}`;

/** The key, which stays in this browser. */
export const key = signal(readLocal(KEY) ?? '');
/** Whether the server wants a key, or another one. */
export const keyWanted = signal<'no' | 'missing' | 'wrong'>('no');

/** Keeps the key, or forgets it. */
export function setKey(given: string): void {
  // Other characters cannot be in a header.
  const value = given.replace(/[^!-~]/g, '');
  key.value = value;
  writeLocal(KEY, value || null);
  keyWanted.value = 'no';
}

/** The server refused a request. */
export class ServerError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** Sends a request with the key. */
export async function send(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (key.value) headers.set('authorization', `Bearer ${key.value}`);
  const response = await fetch(new URL(path, base), { ...init, headers, credentials: 'same-origin' });
  if (response.ok) return response;
  if (response.status === 401) keyWanted.value = key.value ? 'wrong' : 'missing';
  throw await refusal(response);
}

/** The JSON that a route returns. */
export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await send(path, signal ? { signal } : {});
  return (await response.json()) as T;
}

async function refusal(response: Response): Promise<ServerError> {
  let message = `${response.status} ${response.statusText}`.trim();
  const text = await response.text().catch(() => '');
  try {
    const said: unknown = JSON.parse(text)?.error?.message;
    if (typeof said === 'string') message = said;
  } catch {
    // A proxy's page: its status says enough.
  }
  return new ServerError(response.status, message);
}

/** What went wrong, for a person. */
export function explain(error: unknown): string {
  if (error instanceof ServerError) return error.message;
  if (error instanceof TypeError) return 'The server cannot be reached.';
  return error instanceof Error ? error.message : String(error);
}
