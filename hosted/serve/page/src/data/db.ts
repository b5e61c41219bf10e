/** Conversations in the browser's own database (IndexedDB). Nothing is stored on the server. */
import type { Chat, Message } from '../types';
import { base } from '../server/http';

/** Servers behind different prefixes of one origin have their own conversations. */
export const NAME = `sluice${base.pathname}`;
const VERSION = 1;
let opened: Promise<IDBDatabase> | undefined;

function open(): Promise<IDBDatabase> {
  opened ??= new Promise<IDBDatabase>((resolve, reject) => {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      const db = request.result;
      db.createObjectStore('chats', { keyPath: 'id' });
      db.createObjectStore('messages', { keyPath: 'id' }).createIndex('chat', 'chat');
    };
    request.onsuccess = () => {
      // Once closed, it is opened again by the next that needs it.
      request.result.onclose = () => (opened = undefined);
      request.result.onversionchange = () => {
        opened = undefined;
        request.result.close();
      };
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
  }).catch((error: unknown) => {
    opened = undefined;
    throw error;
  });
  return opened;
}

function result<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** What is to be stored, in this order: conversations are emptied, then changed, then messages are; null removes one. */
export interface Change {
  emptied?: Iterable<string>;
  chats?: ReadonlyMap<string, Chat | null>;
  messages?: ReadonlyMap<string, Message | null>;
}

/** Stores all of a change, or nothing of it. A message of a conversation that is not there is left out. */
export async function apply(change: Change): Promise<void> {
  const db = await open();
  const transaction = db.transaction(['chats', 'messages'], 'readwrite');
  const done = new Promise<void>((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error);
  });
  try {
    await write(change, transaction.objectStore('chats'), transaction.objectStore('messages'));
  } catch (error) {
    // What was written before an exception would be stored.
    done.catch(() => undefined);
    transaction.abort();
    throw error;
  }
  await done;
}

async function write({ emptied = [], chats: changed, messages }: Change, chats: IDBObjectStore, store: IDBObjectStore): Promise<void> {
  for (const chat of emptied) {
    chats.delete(chat);
    for (const id of await result(store.index('chat').getAllKeys(chat))) store.delete(id);
  }
  for (const [id, chat] of changed ?? []) {
    if (chat) chats.put(chat);
    else chats.delete(id);
  }
  const known = new Set(await result(chats.getAllKeys()));
  for (const [id, message] of messages ?? []) {
    if (!message) store.delete(id);
    // Another window may have removed the conversation.
    else if (known.has(message.chat)) store.put(message);
  }
}

/** All conversations. */
export async function readChats(): Promise<Chat[]> {
  const db = await open();
  return result(db.transaction('chats').objectStore('chats').getAll());
}

/** The messages of a conversation, or of all. */
export async function readMessages(chat?: string): Promise<Message[]> {
  const db = await open();
  const store = db.transaction('messages').objectStore('messages');
  return result(chat === undefined ? store.getAll() : store.index('chat').getAll(chat));
}

/** The conversation and the messages of these ids, as far as they are there. */
export async function readSome(chats: readonly string[], ids: readonly string[]): Promise<{ chats: Chat[]; messages: Message[] }> {
  const db = await open();
  const transaction = db.transaction(['chats', 'messages']);
  const all = <T>(store: string, keys: readonly string[]): Promise<T[]> => {
    const found = keys.map((key) => result<T | undefined>(transaction.objectStore(store).get(key)));
    return Promise.all(found).then((values) => values.filter((value) => value !== undefined) as T[]);
  };
  const [foundChats, messages] = await Promise.all([all<Chat>('chats', chats), all<Message>('messages', ids)]);
  return { chats: foundChats, messages };
}

/** Removes everything. */
export async function removeAll(): Promise<void> {
  const db = await open();
  const transaction = db.transaction(['chats', 'messages'], 'readwrite');
  transaction.objectStore('chats').clear();
  await result(transaction.objectStore('messages').clear());
}
