/** The conversations that are shown, and their changes, which are stored as they happen. */
import { batch, computed, signal } from '@preact/signals';
import type { Chat, Message, Settings } from '../types';
import { defaults } from './preferences';
import * as store from './store';
import { newestLeaf, pathTo, subtree } from './tree';

/** All conversations, the most recent first. */
export const chats = signal<Chat[]>([]);
/** The conversation that is shown; null for a new one. */
export const currentId = signal<string | null>(null);
/** The messages of the conversation that is shown, by id. */
export const messages = signal<ReadonlyMap<string, Message>>(new Map());
/** The settings of a conversation that has no message yet. */
export const draftSettings = signal<Settings>(defaults());

/** The conversation that is shown, if it has a message. */
export const current = computed(() => chats.value.find((chat) => chat.id === currentId.value));
/** The messages of the branch that is shown. */
export const path = computed(() => pathTo(messages.value, current.value?.leaf ?? null));
/** The settings of the conversation that is shown. */
export const settings = computed(() => current.value?.settings ?? draftSettings.value);

/** Reads the conversations, and keeps up with other windows. */
export async function start(): Promise<void> {
  store.hear((note) => void keepUp(note));
  await reload();
}

/** Reads what is stored again. */
export async function reload(): Promise<void> {
  chats.value = sorted(await store.readChats());
  const id = currentId.value;
  if (id) {
    const stored = await shownOf(id);
    if (currentId.value === id) messages.value = stored;
  }
}

/** Reads what another window has changed. What it has not changed stays the same object, and is not drawn again. */
async function keepUp({ emptied = [], chats: chatIds = [], messages: ids = [] }: store.Note): Promise<void> {
  if (!chatIds.length && !ids.length) return;
  const found = await store.readSome(chatIds, ids);
  const isGone = (id: string | null): boolean => id !== null && chatIds.includes(id) && !found.chats.some((chat) => chat.id === id);
  const next = new Map(messages.value);
  for (const id of ids) {
    const message = found.messages.find((message) => message.id === id);
    if (message) gone.delete(id);
    if (writing.has(id) && message) continue;
    if (!message) {
      gone.add(id);
      kept.delete(id);
      next.delete(id);
    } else if (message.chat === currentId.value) next.set(id, message);
  }
  batch(() => {
    if (chatIds.length) chats.value = sorted([...chats.value.filter((chat) => !chatIds.includes(chat.id)), ...found.chats]);
    if (ids.length) messages.value = next;
  });
  for (const message of kept.values()) if (isGone(message.chat)) gone.add(message.id);
  if (isGone(currentId.value)) await show(null);
  else if (emptied.includes(currentId.value ?? '')) await reload();
}

const sorted = (all: Chat[]): Chat[] => all.sort((a, b) => b.updated - a.updated);

/** Answers that are being written in this window. */
export const writing = new Set<string>();
/** Messages that were removed while they were being written: they are not stored again. */
const gone = new Set<string>();

function put(chat: Chat | null, changed: readonly Message[] = []): Promise<void> {
  return store.change({
    ...(chat ? { chats: new Map([[chat.id, chat]]) } : {}),
    messages: new Map(changed.filter((message) => !gone.has(message.id)).map((message) => [message.id, message])),
  });
}

let wanted: string | null = null;

/** Shows a conversation, or an empty one. */
export async function show(id: string | null): Promise<void> {
  wanted = id;
  if (id === currentId.value) return;
  const found = id === null ? new Map<string, Message>() : await shownOf(id);
  // Another may have been asked for since.
  if (wanted !== id) return;
  batch(() => {
    currentId.value = id;
    messages.value = found;
    if (id === null) draftSettings.value = defaults();
  });
}

/** The messages of a conversation. An answer that is being written here is newer than what is stored. */
async function shownOf(id: string): Promise<Map<string, Message>> {
  const found = new Map((await store.readMessages(id)).map((message) => [message.id, message]));
  for (const message of kept.values()) if (message.chat === id) found.set(message.id, message);
  return found;
}

/** A message as it is stored, or as it is being written here. */
export async function latest(id: string): Promise<Message | undefined> {
  return kept.get(id) ?? (await store.readSome([], [id])).messages[0];
}

/** All conversations with their messages. */
export async function everything(): Promise<{ chat: Chat; messages: Message[] }[]> {
  const [all, found] = await Promise.all([store.readChats(), store.readMessages()]);
  const byChat = new Map(all.map((chat) => [chat.id, { chat, messages: [] as Message[] }]));
  for (const message of found) byChat.get(message.chat)?.messages.push(kept.get(message.id) ?? message);
  return [...byChat.values()];
}

/** Messages whose answers are being written, also of conversations that are not shown. */
const kept = new Map<string, Message>();

/** Replaces a conversation's fields. */
export async function changeChat(id: string, change: Partial<Chat>): Promise<void> {
  const changed = setChat(id, change);
  if (changed) await put(changed);
}

/** Shows a conversation's new state, without storing it. */
function setChat(id: string, change: Partial<Chat>): Chat | null {
  const chat = chats.value.find((chat) => chat.id === id);
  if (!chat) return null;
  const changed = { ...chat, ...change };
  chats.value = chats.value.map((chat) => (chat.id === id ? changed : chat));
  return changed;
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
      currentId.value = wanted = chat.id;
      messages.value = new Map();
    }
    const { id } = chat;
    chats.value = [chat, ...chats.value.filter((other) => other.id !== id)];
    set(message);
  });
  void put(chat ?? null, [message]);
}

/** Shows a message's new state, without storing it. */
export function set(message: Message): void {
  if (gone.has(message.id)) return;
  if (writing.has(message.id)) kept.set(message.id, message);
  if (message.chat !== currentId.value) return;
  messages.value = new Map(messages.value).set(message.id, message);
}

/** Shows and stores a message's new state. */
export function save(message: Message): Promise<void> {
  set(message);
  if (!writing.has(message.id)) kept.delete(message.id);
  return put(null, [message]);
}

/** Shows the newest branch that begins with a message. */
export function showBranch(message: Message): void {
  void changeChat(message.chat, { leaf: newestLeaf(messages.value, message.id) });
}

/** What was removed, for who wants it back. */
export interface Removed {
  chat: string;
  messages: Message[];
  leaf: string | null;
}

/** Removes a message and what follows it; the branch before it is shown. */
export function removeFrom(message: Message): Removed {
  const { chat } = message;
  const ids = subtree(messages.value, message.id);
  const rest = new Map(messages.value);
  const removed = ids.flatMap((id) => rest.get(id) ?? []);
  ids.forEach((id) => rest.delete(id));
  const beside = [...rest.values()].filter((other) => other.parent === message.parent).at(-1);
  const leaf = beside ? newestLeaf(rest, beside.id) : message.parent;
  const before = current.value?.leaf ?? null;
  batch(() => {
    messages.value = rest;
    const changed = setChat(chat, { leaf });
    const none = new Map(ids.map((id) => [id, null]));
    void store.change({ messages: none, ...(changed ? { chats: new Map([[chat, changed]]) } : {}) });
  });
  return { chat, messages: removed, leaf: before };
}

/** Brings back what was removed. */
export function bringBack({ chat, messages: removed, leaf }: Removed): void {
  removed.forEach((message) => gone.delete(message.id));
  batch(() => {
    if (currentId.value === chat) messages.value = new Map([...messages.value, ...removed.map((message) => [message.id, message] as const)]);
    // Together, or a window that is closed in between would show none of them.
    void put(setChat(chat, { leaf }), removed);
  });
}

/** Removes a conversation. */
export async function removeChat(id: string): Promise<void> {
  chats.value = chats.value.filter((chat) => chat.id !== id);
  if (currentId.value === id) await show(null);
  await store.change({ emptied: [id] });
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
