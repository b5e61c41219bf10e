/** Conversations as files: ours, and those that llama-server's page exports. */
import type { Chat, Message, Role, TextFile, ToolCall } from '../types';
import { newId, reload } from './chats';
import * as db from './db';

/** All conversations as one JSON text. */
export async function exportAll(): Promise<string> {
  const [chats, messages] = await Promise.all([db.readChats(), db.readMessages()]);
  const conversations = chats.map((chat) => ({
    ...chat,
    messages: messages.filter((message) => message.chat === chat.id),
  }));
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

/** What an import did. */
export interface Imported {
  chats: number;
  messages: number;
  /** Attachments that are not text. */
  left: number;
}

/**
 * Adds the conversations of a file to those that are here. One that is here already, by its id, is replaced.
 * Throws if the file is of another kind.
 */
export async function importText(text: string): Promise<Imported> {
  const done: Imported = { chats: 0, messages: 0, left: 0 };
  for (const { chat, messages, left } of parse(text)) {
    await db.removeChat(chat.id);
    await db.put(chat, messages);
    done.chats += 1;
    done.messages += messages.length;
    done.left += left;
  }
  await reload();
  return done;
}

interface Parsed {
  chat: Chat;
  messages: Message[];
  left: number;
}

function parse(text: string): Parsed[] {
  const values = parseJson(text);
  const ours = values.length === 1 ? (values[0] as Record<string, unknown>) : undefined;
  if (ours?.['format'] === FORMAT && Array.isArray(ours['conversations'])) {
    return ours['conversations'].map(ofOurs);
  }
  const theirs = values.flat() as Record<string, unknown>[];
  if (theirs.length && theirs.every((one) => isObject(one) && isObject(one['conv']) && Array.isArray(one['messages']))) {
    return theirs.map(ofLlamaServer);
  }
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

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function ofOurs(value: unknown): Parsed {
  const { messages, ...chat } = value as Chat & { messages?: unknown };
  if (typeof chat.id !== 'string' || !Array.isArray(messages)) {
    throw new Error('A conversation in this file has no id or no messages.');
  }
  const all = messages.map((value) => {
    const message = value as Message;
    if (!isObject(value) || typeof message.id !== 'string' || !ROLES.includes(message.role)) {
      throw new Error(`A message of "${String(chat.title)}" has no id or no known role.`);
    }
    return { ...message, chat: chat.id, content: String(message.content ?? ''), open: false };
  });
  const settings = { ...chat.settings, system: String(chat.settings?.system ?? ''), params: chat.settings?.params ?? {} };
  const now = Date.now();
  return {
    chat: { ...chat, title: String(chat.title ?? 'Chat'), created: chat.created ?? now, updated: chat.updated ?? now, settings },
    messages: all,
    left: 0,
  };
}

/** `{conv, messages}`, where a message of type `root` stands above the first ones. */
function ofLlamaServer(one: Record<string, unknown>): Parsed {
  const conv = one['conv'] as Record<string, unknown>;
  const theirs = (one['messages'] as unknown[]).filter(isObject);
  const id = String(conv['id'] ?? newId());
  const isSystem = (message: Record<string, unknown>): boolean => message['role'] === 'system' && message['type'] !== 'root';
  // Ours has one system text for the whole conversation, outside of its messages.
  const left = new Set(theirs.filter((message) => message['type'] === 'root' || isSystem(message)).map((message) => message['id']));
  const parents = new Map(theirs.map((message) => [message['id'], message['parent']]));
  const above = (parent: unknown): string | null => {
    let at = parent;
    while (left.has(at)) at = parents.get(at);
    return typeof at === 'string' || typeof at === 'number' ? `${id}:${at}` : null;
  };
  let unread = 0;
  const messages = theirs.filter((message) => !left.has(message['id'])).map((message) => {
    const files = filesOf(message['extra']);
    unread += files.left;
    return ofTheirMessage(message, id, above(message['parent']), files.files);
  });
  const updated = Number(conv['lastModified']) || Date.now();
  const system = theirs.find(isSystem);
  const leaf = above(conv['currNode']) ?? messages.at(-1)?.id ?? null;
  const chat: Chat = {
    id,
    title: String(conv['name'] ?? 'Chat'),
    titled: true,
    created: messages[0]?.created ?? updated,
    updated,
    leaf: messages.some((message) => message.id === leaf) ? leaf : (messages.at(-1)?.id ?? null),
    settings: { system: String(system?.['content'] ?? ''), params: {} },
  };
  return { chat, messages, left: unread };
}

function ofTheirMessage(message: Record<string, unknown>, chat: string, parent: string | null, files: TextFile[]): Message {
  const role = ROLES.includes(message['role'] as Role) ? (message['role'] as Role) : 'user';
  const made: Message = {
    id: `${chat}:${String(message['id'])}`,
    chat,
    parent,
    role,
    created: Number(message['timestamp']) || Date.now(),
    content: String(message['content'] ?? ''),
  };
  const reasoning = message['reasoningContent'] ?? message['thinking'];
  if (reasoning) made.reasoning = String(reasoning);
  if (typeof message['toolCallId'] === 'string') made.callId = message['toolCallId'];
  const calls = callsOf(message['toolCalls']);
  if (calls.length) made.calls = calls;
  if (files.length) made.files = files;
  return made;
}

/** Calls, which are stored as a JSON text of OpenAI's form. */
function callsOf(text: unknown): ToolCall[] {
  if (typeof text !== 'string' || !text.trim()) return [];
  try {
    const list = JSON.parse(text) as { id?: string; function?: { name?: string; arguments?: string } }[];
    return list.map((call) => ({ id: call.id ?? newId(), name: call.function?.name ?? '', arguments: call.function?.arguments ?? '' }));
  } catch {
    return [];
  }
}

function filesOf(extra: unknown): { files: TextFile[]; left: number } {
  const all = Array.isArray(extra) ? extra.filter(isObject) : [];
  const texts = all.filter((file) => typeof file['content'] === 'string');
  return {
    files: texts.map((file) => ({ name: String(file['name'] ?? 'text'), text: String(file['content']) })),
    left: all.length - texts.length,
  };
}

const FORMAT = 'sluice-conversations';
const ROLES: Role[] = ['user', 'assistant', 'tool'];
