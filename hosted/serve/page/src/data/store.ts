/** What is stored, and what is not stored yet: a browser may refuse, be full, or fail for a while. */
import { signal } from '@preact/signals';
import type { Chat, Message } from '../types';
import * as db from './db';

/** Whether changes are stored: if not, whether the browser has no room, lets the page store nothing, or failed. */
export const storage = signal<'stored' | 'full' | 'refused' | 'failed'>('stored');

interface Pending {
  emptied: Set<string>;
  chats: Map<string, Chat | null>;
  messages: Map<string, Message | null>;
}

const nothing = (): Pending => ({ emptied: new Set(), chats: new Map(), messages: new Map() });
/** What waits to be stored, and what is being stored. Both are newer than the database. */
let waiting = nothing();
let sent = nothing();
let flushing: Promise<void> | undefined;
let timer: ReturnType<typeof setTimeout> | undefined;

/** Adds a later change to an earlier one. */
function merge(into: Pending, { emptied = [], chats, messages }: db.Change): Pending {
  for (const chat of emptied) {
    into.emptied.add(chat);
    into.chats.delete(chat);
    for (const [id, message] of into.messages) if (message?.chat === chat) into.messages.delete(id);
  }
  for (const [id, chat] of chats ?? []) into.chats.set(id, chat);
  for (const [id, message] of messages ?? []) into.messages.set(id, message);
  return into;
}

/** Stores a change. Resolves once it is stored, or kept in this window until it can be. */
export async function change(wanted: db.Change): Promise<void> {
  merge(waiting, wanted);
  // What is being stored now does not have it.
  await flushing;
  await flush();
}

function flush(): Promise<void> {
  flushing ??= store().finally(() => (flushing = undefined));
  return flushing;
}

async function store(): Promise<void> {
  const { emptied, chats, messages } = waiting;
  if (!emptied.size && !chats.size && !messages.size) return;
  sent = waiting;
  waiting = nothing();
  try {
    await db.apply(sent);
    tell(sent);
    storage.value = 'stored';
  } catch (error) {
    waiting = merge(sent, waiting);
    storage.value = await reasonOf(error);
    clearTimeout(timer);
    timer = setTimeout(() => void flush(), RETRY_MS);
  } finally {
    sent = nothing();
  }
}

async function reasonOf(error: unknown): Promise<'full' | 'refused' | 'failed'> {
  if (error instanceof DOMException && error.name === 'QuotaExceededError') return 'full';
  return db.readSome([], []).then(() => 'failed' as const, () => 'refused' as const);
}

/** Stores a change as a whole, or throws: it is not kept for later unless nothing can be stored at all. */
export async function changeNow(wanted: db.Change): Promise<void> {
  await flushing;
  try {
    await db.apply(wanted);
  } catch (error) {
    const why = await reasonOf(error);
    if (why === 'full') throw new Error('The browser has no more room for this page. Nothing was changed.');
    if (why === 'failed') throw new Error('The browser could not store it. Nothing was changed.');
    await change(wanted);
    return;
  }
  tell(wanted);
}

/** All conversations. */
export async function readChats(): Promise<Chat[]> {
  const found = new Map((await orNone(db.readChats())).map((chat) => [chat.id, chat]));
  for (const { emptied, chats } of [sent, waiting]) {
    for (const id of emptied) found.delete(id);
    for (const [id, chat] of chats) lay(found, id, chat);
  }
  return [...found.values()];
}

/** The messages of a conversation, or of all. */
export async function readMessages(of?: string): Promise<Message[]> {
  return laid(await orNone(db.readMessages(of)), (message) => of === undefined || message.chat === of);
}

/** The conversations and messages of these ids, as far as they are there. */
export async function readSome(ids: readonly string[], messageIds: readonly string[]): Promise<{ chats: Chat[]; messages: Message[] }> {
  const found = await db.readSome(ids, messageIds).catch(() => ({ chats: [], messages: [] }));
  const chats = new Map(found.chats.map((chat) => [chat.id, chat]));
  for (const pending of [sent, waiting]) {
    for (const id of pending.emptied) chats.delete(id);
    for (const id of ids) if (pending.chats.has(id)) lay(chats, id, pending.chats.get(id) ?? null);
  }
  return { chats: [...chats.values()], messages: laid(found.messages, (message) => messageIds.includes(message.id)) };
}

/** Messages as they will be stored. */
function laid(stored: readonly Message[], isWanted: (message: Message) => boolean): Message[] {
  const found = new Map(stored.map((message) => [message.id, message]));
  for (const { emptied, messages } of [sent, waiting]) {
    if (emptied.size) for (const message of found.values()) if (emptied.has(message.chat)) found.delete(message.id);
    for (const [id, message] of messages) if (!message || isWanted(message)) lay(found, id, message);
  }
  return [...found.values()];
}

function lay<T>(found: Map<string, T>, id: string, value: T | null): void {
  if (value) found.set(id, value);
  else found.delete(id);
}

async function orNone<T>(reading: Promise<T[]>): Promise<T[]> {
  try {
    return await reading;
  } catch {
    storage.value = 'refused';
    return [];
  }
}

/** Removes everything. */
export async function removeAll(): Promise<void> {
  await flushing;
  const ids = (await readChats()).map((chat) => chat.id);
  waiting = nothing();
  await db.removeAll();
  tellOthers({ chats: ids });
}

/** What a window tells the others: what it has changed, answers that are to be stopped, and which it writes. */
export interface Note {
  /** Conversations whose messages are all others. */
  emptied?: string[];
  chats?: string[];
  messages?: string[];
  stop?: readonly string[];
  /** Which window writes this answer? */
  ask?: string;
  /** This window does. */
  holds?: string;
}

const channel = typeof BroadcastChannel === 'function' ? new BroadcastChannel(db.NAME) : undefined;
const listeners: ((note: Note) => void)[] = [];
if (channel) channel.onmessage = ({ data }: MessageEvent<Note>) => listeners.forEach((listener) => listener(data));

/** Listens to what other windows tell. */
export function hear(listener: (note: Note) => void): void {
  listeners.push(listener);
}

/** Tells other windows. */
export function tellOthers(note: Note): void {
  channel?.postMessage(note);
}

function tell({ emptied = [], chats, messages }: db.Change): void {
  const changed = new Set([...emptied, ...(chats?.keys() ?? [])]);
  tellOthers({ emptied: [...emptied], chats: [...changed], messages: [...(messages?.keys() ?? [])] });
}

/** Between attempts to store what could not be stored. */
const RETRY_MS = 3000;
