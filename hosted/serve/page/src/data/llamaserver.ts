/** Files that llama-server's page exports. */
import type { Chat, Message, Role, TextFile, ToolCall } from '../types';
import { newId } from './chats';
import { isObject } from './ours';
import type { Parsed } from './transfer';

type Their = Record<string, unknown>;

/** Whether a value is `{conv, messages}`. */
export function isTheirs(one: unknown): boolean {
  return isObject(one) && isObject(one['conv']) && Array.isArray(one['messages']);
}

/** `{conv, messages}`, where a message of type `root` stands above the first ones. Throws if something in it cannot be read. */
export function ofLlamaServer(one: unknown): Parsed {
  const { conv, messages: found } = one as { conv: Their; messages: unknown[] };
  const theirs = found.filter(isObject);
  if (theirs.length < found.length) throw new Error(`A message of “${String(conv['name'])}” is not an object.`);
  const id = String(conv['id'] ?? newId());
  const byId = new Map(theirs.map((message) => [message['id'], message]));
  if (byId.size < theirs.length) throw new Error(`Two messages of “${String(conv['name'])}” have the same id.`);
  // Ours has one system text for the whole conversation, outside of its messages.
  const isLeft = (message: Their | undefined): boolean => message !== undefined && (message['type'] === 'root' || isSystem(message));
  const above = (parent: unknown): string | null => {
    const message = [...upward(byId, parent)].find((message) => !isLeft(message));
    return message ? `${id}:${String(message['id'])}` : null;
  };
  let unread = 0;
  const messages = theirs.filter((message) => !isLeft(message)).map((message) => {
    const files = filesOf(message['extra']);
    unread += files.left;
    return ofTheirMessage(message, id, above(message['parent']), files.files);
  });
  const updated = Number(conv['lastModified']) || Date.now();
  const leaf = above(conv['currNode']) ?? messages.at(-1)?.id ?? null;
  const systems = theirs.filter((message) => isSystem(message) && message['content']);
  const system = [...upward(byId, conv['currNode'])].find(isSystem) ?? systems[0];
  const chat: Chat = {
    id,
    title: String(conv['name'] ?? 'Chat'),
    titled: true,
    created: messages[0]?.created ?? updated,
    updated,
    leaf,
    settings: { system: String(system?.['content'] ?? ''), params: {} },
  };
  return { chat, messages, left: unread, systems: systems.filter((other) => other['content'] !== system?.['content']).length };
}

function isSystem(message: Their): boolean {
  return message['role'] === 'system' && message['type'] !== 'root';
}

/** A message and those above it. */
function* upward(byId: ReadonlyMap<unknown, Their>, from: unknown): Generator<Their> {
  const seen = new Set<unknown>();
  for (let at = byId.get(from); at; at = byId.get(at['parent'])) {
    if (seen.has(at)) throw new Error(`A message is below itself: ${String(at['id'])}.`);
    seen.add(at);
    yield at;
  }
}

function ofTheirMessage(message: Their, chat: string, parent: string | null, files: TextFile[]): Message {
  const role = message['role'] as Role;
  if (!ROLES.includes(role)) throw new Error(`A message has a role that is not known: ${String(role)}.`);
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
  let list: unknown;
  try {
    list = JSON.parse(text);
  } catch {
    throw new Error('The toolCalls of a message are not JSON.');
  }
  if (!Array.isArray(list) || !list.every(isObject)) throw new Error('The toolCalls of a message are not a list of objects.');
  return list.map((call) => {
    const called = isObject(call['function']) ? call['function'] : {};
    return { id: String(call['id'] ?? newId()), name: String(called['name'] ?? ''), arguments: String(called['arguments'] ?? '') };
  });
}

function filesOf(extra: unknown): { files: TextFile[]; left: number } {
  const all = Array.isArray(extra) ? extra.filter(isObject) : [];
  const texts = all.filter((file) => typeof file['content'] === 'string');
  return {
    files: texts.map((file) => ({ name: String(file['name'] ?? 'text'), text: String(file['content']) })),
    left: all.length - texts.length,
  };
}

const ROLES: Role[] = ['user', 'assistant', 'tool'];
