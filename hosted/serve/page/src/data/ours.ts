/** Files of this page: each field is checked before anything is stored, as what is stored is drawn each time the page is opened. */
import type { Chat, Message } from '../types';
import type { Parsed } from './transfer';

/** The `format` of this page's files. */
export const FORMAT = 'sluice-conversations';

/** Whether a value is a JSON object. */
export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Throws if a value is of another kind, with the field's name. */
type Check = (value: unknown, at: string) => void;

function kind(isRight: (value: unknown) => boolean, what: string): Check {
  return (value, at) => {
    if (!isRight(value)) throw new Error(`${at} has to be ${what}.`);
  };
}

const text = kind((value) => typeof value === 'string', 'a text');
const textOrNull = kind((value) => value === null || typeof value === 'string', 'a text or null');
const number = kind((value) => typeof value === 'number', 'a number');
const flag = kind((value) => typeof value === 'boolean', 'true or false');
const object = kind(isObject, 'an object');
const oneOf = (names: string[]): Check => kind((value) => names.includes(value as string), `one of ${names.join(', ')}`);

function maybe(check: Check): Check {
  return (value, at) => {
    if (value !== undefined) check(value, at);
  };
}

function list(check: Check): Check {
  return (value, at) => {
    if (!Array.isArray(value)) throw new Error(`${at} has to be a list.`);
    value.forEach((one, i) => check(one, `${at}[${i}]`));
  };
}

function record(check: Check): Check {
  return (value, at) => {
    object(value, at);
    for (const [name, one] of Object.entries(value as object)) check(one, `${at}.${name}`);
  };
}

function shape(fields: Record<string, Check>): Check {
  return (value, at) => {
    object(value, at);
    for (const [name, check] of Object.entries(fields)) check((value as Record<string, unknown>)[name], `${at}.${name}`);
  };
}

const parameter: Check = (value, at) => {
  if (Array.isArray(value)) list(text)(value, at);
  else kind((value) => ['number', 'string', 'boolean'].includes(typeof value), 'a number, a text, a list of texts, true or false')(value, at);
};

const SETTINGS = shape({
  model: maybe(text), adapters: maybe(record(number)), system: maybe(text), params: maybe(record(parameter)), thinking: maybe(flag),
  effort: maybe(text), tools: maybe(text), extra: maybe(text),
});

const RUN = shape({
  fields: object, system: text, from: number, fromReasoning: number, fingerprint: maybe(text), model: maybe(text), firstTokenMs: maybe(number),
  timings: maybe(shape({
    cache_n: number, prompt_n: number, prompt_ms: number, prompt_per_second: number, predicted_n: number, predicted_ms: number,
    predicted_per_second: number, draft_n: maybe(number), draft_n_accepted: maybe(number),
  })),
  finish: maybe(text), lastEvent: maybe(text),
});

const MESSAGE = shape({
  id: text, parent: textOrNull, role: oneOf(['user', 'assistant', 'tool']), created: number, content: text, reasoning: maybe(text),
  calls: maybe(list(shape({ id: text, name: text, arguments: text }))), callId: maybe(text),
  files: maybe(list(shape({ name: text, text }))), runs: maybe(list(RUN)), error: maybe(text),
});

const CHAT = shape({
  id: text, title: text, titled: maybe(flag), created: number, updated: number, leaf: textOrNull, settings: maybe(SETTINGS),
  messages: list(MESSAGE),
});

/** The conversations of a file. Throws if any field in it is not what it should be. */
export function ofOurs(file: Record<string, unknown>): Parsed[] {
  if (file['version'] !== 1) throw new Error(`This file has version ${String(file['version'])}; this page reads version 1.`);
  list(CHAT)(file['conversations'], 'conversations');
  return (file['conversations'] as (Chat & { messages: Message[] })[]).map(({ messages, ...chat }) => {
    isTree(chat, messages);
    const settings = { ...chat.settings, system: chat.settings?.system ?? '', params: chat.settings?.params ?? {} };
    // An answer that was being written then is not now.
    const all = messages.map(({ open: _, ...message }) => ({ ...message, chat: chat.id }));
    return { chat: { ...chat, settings }, messages: all, left: 0, systems: 0 };
  });
}

/** Throws unless each message has its own id and a parent that is there, none is below itself, and the last one shown is there. */
function isTree({ title, leaf }: Chat, messages: readonly Message[]): void {
  const parents = new Map(messages.map(({ id, parent }) => [id, parent]));
  if (parents.size < messages.length) throw new Error(`Two messages of “${title}” have the same id.`);
  if (leaf !== null && !parents.has(leaf)) throw new Error(`The last message of “${title}” (leaf) is missing.`);
  const rooted = new Set<string>();
  for (const { id } of messages) {
    const above = new Set<string>();
    for (let at: string | null = id; at !== null && !rooted.has(at); at = parents.get(at) as string | null) {
      if (!parents.has(at)) throw new Error(`A message of “${title}” has a parent that is missing: ${at}.`);
      if (above.has(at)) throw new Error(`A message of “${title}” is below itself: ${at}.`);
      above.add(at);
    }
    above.forEach((one) => rooted.add(one));
  }
}
