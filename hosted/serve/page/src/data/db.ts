/** Conversations in the browser's own database (IndexedDB). Nothing is stored on the server. */
import type { Chat, Message } from '../types';
import { base } from '../server/http';

const VERSION = 1;
let opened: Promise<IDBDatabase> | undefined;

function open(): Promise<IDBDatabase> {
  opened ??= new Promise((resolve, reject) => {
    // Servers behind different prefixes of one origin have their own conversations.
    const request = indexedDB.open(`sluice${base.pathname}`, VERSION);
    request.onupgradeneeded = () => {
      const db = request.result;
      db.createObjectStore('chats', { keyPath: 'id' });
      db.createObjectStore('messages', { keyPath: 'id' }).createIndex('chat', 'chat');
    };
    request.onsuccess = () => {
      request.result.onversionchange = () => request.result.close();
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
  });
  return opened;
}

function result<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function write(change: (chats: IDBObjectStore, messages: IDBObjectStore) => void): Promise<void> {
  const db = await open();
  const transaction = db.transaction(['chats', 'messages'], 'readwrite');
  change(transaction.objectStore('chats'), transaction.objectStore('messages'));
  await new Promise<void>((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error);
  });
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

/** Stores a conversation and messages of it. */
export function put(chat: Chat | null, messages: readonly Message[] = []): Promise<void> {
  return write((chats, store) => {
    if (chat) chats.put(chat);
    for (const message of messages) store.put(message);
  });
}

/** Removes messages. */
export function removeMessages(ids: readonly string[]): Promise<void> {
  return write((_, store) => ids.forEach((id) => store.delete(id)));
}

/** Removes a conversation with its messages. */
export async function removeChat(id: string): Promise<void> {
  const messages = await readMessages(id);
  await write((chats, store) => {
    chats.delete(id);
    for (const message of messages) store.delete(message.id);
  });
}

/** Removes everything. */
export function removeAll(): Promise<void> {
  return write((chats, store) => {
    chats.clear();
    store.clear();
  });
}
