/** Conversations as files: ours, and those that llama-server's page exports. */
import type { Chat, Message } from '../types';
import { everything, newId } from './chats';
import { isTheirs, ofLlamaServer } from './llamaserver';
import { FORMAT, isObject, ofOurs } from './ours';
import { changeNow, readChats, readSome } from './store';

/** All conversations as one JSON text. */
export async function exportAll(): Promise<string> {
  const conversations = (await everything()).map(({ chat, messages }) => ({ ...chat, messages }));
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

/** A conversation of a file. */
export interface Parsed {
  chat: Chat;
  messages: Message[];
  /** Attachments that are not text. */
  left: number;
  /** System prompts that are not above the branch that is shown. */
  systems: number;
}

/** What an import did. */
export interface Imported {
  chats: number;
  messages: number;
  left: number;
  systems: number;
}

/** Reads a file. Throws if it is of another kind, or anything in it is not what it should be. */
export async function readFile(text: string): Promise<{ parsed: Parsed[]; grown: Parsed[] }> {
  const parsed = parse(text);
  const ids = parsed.map(({ chat }) => chat.id);
  const twice = ids.find((id, i) => ids.indexOf(id) !== i);
  if (twice !== undefined) throw new Error(`Two conversations of this file have the id "${twice}".`);
  await separate(parsed);
  return { parsed, grown: await grownOf(parsed) };
}

/** The conversations that have more here than in the file, and would lose it. */
async function grownOf(parsed: readonly Parsed[]): Promise<Parsed[]> {
  const here = new Map((await readChats()).map((chat) => [chat.id, chat]));
  const grown: Parsed[] = [];
  for (const one of parsed) {
    const old = here.get(one.chat.id);
    if (old && old.updated > one.chat.updated) grown.push(one);
  }
  return grown;
}

/** Gives new ids to messages whose ids another conversation has: in the database, an id is one message's. */
async function separate(parsed: Parsed[]): Promise<void> {
  const owners = new Map<string, string>();
  const { messages: stored } = await readSome([], parsed.flatMap(({ messages }) => messages.map((message) => message.id)));
  for (const message of stored) owners.set(message.id, message.chat);
  for (const one of parsed) {
    const { chat } = one;
    if (one.messages.some(({ id }) => (owners.get(id) ?? chat.id) !== chat.id)) {
      const ids = new Map(one.messages.map(({ id }) => [id, newId()]));
      const renamed = (id: string | null): string | null => (id === null ? null : (ids.get(id) ?? null));
      one.messages = one.messages.map((message) => ({ ...message, id: ids.get(message.id) as string, parent: renamed(message.parent) }));
      one.chat = { ...chat, leaf: renamed(chat.leaf) };
    }
    for (const { id } of one.messages) owners.set(id, chat.id);
  }
}

/** Stores conversations in place of those with the same ids: all of them, or none. */
export async function storeAll(parsed: readonly Parsed[]): Promise<Imported> {
  await changeNow({
    emptied: parsed.map(({ chat }) => chat.id),
    chats: new Map(parsed.map(({ chat }) => [chat.id, chat])),
    messages: new Map(parsed.flatMap(({ messages }) => messages.map((message) => [message.id, message] as const))),
  });
  const sum = (count: (one: Parsed) => number): number => parsed.reduce((n, one) => n + count(one), 0);
  return { chats: parsed.length, messages: sum((one) => one.messages.length), left: sum((one) => one.left), systems: sum((one) => one.systems) };
}

function parse(text: string): Parsed[] {
  const values = parseJson(text);
  const ours = values.length === 1 && isObject(values[0]) ? values[0] : undefined;
  if (ours?.['format'] === FORMAT) return ofOurs(ours);
  const theirs = values.flat();
  if (theirs.length && theirs.every(isTheirs)) return theirs.map(ofLlamaServer);
  throw new Error('This file has no conversations of this page or of llama-server.');
}

/** The values of a file: one, or one a line. */
function parseJson(text: string): unknown[] {
  try {
    return [JSON.parse(text)];
  } catch {
    try {
      const lines = text.split('\n').filter((line) => line.trim());
      return lines.map((line) => JSON.parse(line) as unknown);
    } catch {
      throw new Error('This file is not JSON.');
    }
  }
}
