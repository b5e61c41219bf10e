/** The conversations that are shown, and their changes, which are stored as they happen. */
import { batch, computed, signal } from '@preact/signals';
import type { Chat, Message, Settings } from '../types';
import * as db from './db';
import { newestLeaf, pathTo, subtree } from './tree';
import { defaults } from './preferences';

/** All conversations, the most recent first. */
export const chats = signal<Chat[]>([]);
/** The conversation that is shown; null for a new one. */
export const currentId = signal<string | null>(null);
/** The messages of the conversation that is shown, by id. */
export const messages = signal<ReadonlyMap<string, Message>>(new Map());
/** The settings of a conversation that has no message yet. */
export const draftSettings = signal<Settings>(defaults());
/** Whether conversations can be stored: some private windows refuse. */
export const isStored = signal(true);

/** The conversation that is shown, if it has a message. */
export const current = computed(() => chats.value.find((chat) => chat.id === currentId.value));
/** The messages of the branch that is shown. */
export const path = computed(() => pathTo(messages.value, current.value?.leaf ?? null));
/** The settings of the conversation that is shown. */
export const settings = computed(() => current.value?.settings ?? draftSettings.value);

const others = typeof BroadcastChannel === 'function' ? new BroadcastChannel('sluice') : undefined;

/** Reads the conversations, and keeps up with other windows. */
export async function start(): Promise<void> {
  if (others) others.onmessage = () => void reload();
  await reload();
}

/** Reads what is stored again. */
export async function reload(): Promise<void> {
  try {
    const found = await db.readChats();
    chats.value = found.sort((a, b) => b.updated - a.updated);
    const id = currentId.value;
    if (id) {
      const known = messages.value;
      const stored = new Map((await db.readMessages(id)).map((message) => [message.id, message]));
      // An answer that is being written here is newer than what is stored.
      for (const id of writing) {
        const message = known.get(id);
        if (message) stored.set(id, message);
      }
      if (currentId.value === id) messages.value = stored;
    }
  } catch {
    isStored.value = false;
  }
}

/** Answers that are being written in this window. */
export const writing = new Set<string>();

async function store(chat: Chat | null, changed: readonly Message[] = []): Promise<void> {
  try {
    await db.put(chat, changed);
    others?.postMessage('changed');
  } catch {
    isStored.value = false;
  }
}

/** Shows a conversation, or an empty one. */
export async function show(id: string | null): Promise<void> {
  if (id === currentId.value) return;
  const found = id === null ? [] : await db.readMessages(id).catch(() => []);
  batch(() => {
    currentId.value = id;
    const map = new Map(found.map((message) => [message.id, message]));
    for (const message of kept.values()) if (message.chat === id) map.set(message.id, message);
    messages.value = map;
    if (id === null) draftSettings.value = defaults();
  });
}

/** Messages whose answers are being written, also of conversations that are not shown. */
const kept = new Map<string, Message>();

/** Replaces a conversation's fields. */
export async function changeChat(id: string, change: Partial<Chat>): Promise<void> {
  const chat = chats.value.find((chat) => chat.id === id);
  if (!chat) return;
  const changed = { ...chat, ...change };
  chats.value = chats.value.map((chat) => (chat.id === id ? changed : chat));
  await store(changed);
}

/** Changes the settings of the conversation that is shown. */
export function changeSettings(change: Partial<Settings>): void {
  const changed = { ...settings.value, ...change };
  const chat = current.value;
  if (chat) void changeChat(chat.id, { settings: changed });
  else draftSettings.value = changed;
}

/** Adds a message to the end of a branch, which is shown then. Makes the conversation with its first message. */
export function add(message: Message): void {
  const now = Date.now();
  let chat = chats.value.find((chat) => chat.id === message.chat);
  batch(() => {
    if (chat) {
      const isFirst = messages.value.size === 0 && !chat.titled;
      const title = isFirst ? titleOf(message) : chat.title;
      chat = { ...chat, title, leaf: message.id, updated: now };
    } else {
      const title = titleOf(message);
      chat = { id: message.chat, title, created: now, updated: now, leaf: message.id, settings: settings.value };
      currentId.value = chat.id;
      messages.value = new Map();
    }
    const { id } = chat;
    chats.value = [chat, ...chats.value.filter((other) => other.id !== id)];
    set(message);
  });
  void store(chat ?? null, [message]);
}

/** Shows a message's new state, without storing it. */
export function set(message: Message): void {
  if (writing.has(message.id)) kept.set(message.id, message);
  if (message.chat !== currentId.value) return;
  messages.value = new Map(messages.value).set(message.id, message);
}

/** Shows and stores a message's new state. */
export function save(message: Message): Promise<void> {
  set(message);
  if (!writing.has(message.id)) kept.delete(message.id);
  return store(null, [message]);
}

/** Shows the newest branch that begins with a message. */
export function showBranch(message: Message): void {
  void changeChat(message.chat, { leaf: newestLeaf(messages.value, message.id) });
}

/** Removes a message and what follows it; the branch before it is shown. */
export async function removeFrom(message: Message): Promise<void> {
  const gone = subtree(messages.value, message.id);
  const rest = new Map(messages.value);
  gone.forEach((id) => rest.delete(id));
  const beside = [...rest.values()].filter((other) => other.parent === message.parent).at(-1);
  const leaf = beside ? newestLeaf(rest, beside.id) : message.parent;
  batch(() => {
    messages.value = rest;
    void changeChat(message.chat, { leaf });
  });
  await db.removeMessages(gone).catch(() => (isStored.value = false));
}

/** Removes a conversation. */
export async function removeChat(id: string): Promise<void> {
  chats.value = chats.value.filter((chat) => chat.id !== id);
  if (currentId.value === id) await show(null);
  await db.removeChat(id).catch(() => (isStored.value = false));
  others?.postMessage('changed');
}

/** The beginning of a message, as a title. */
export function titleOf(message: Message): string {
  const text = (message.content || message.files?.[0]?.name || 'New chat').trim().replace(/\s+/g, ' ');
  if (text.length <= TITLE_CHARS) return text;
  const cut = text.slice(0, TITLE_CHARS);
  return `${cut.slice(0, Math.max(cut.lastIndexOf(' '), TITLE_CHARS / 2))}…`;
}

/** A new id. */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

const TITLE_CHARS = 60;
