/** What a person does with a conversation. */
import { batch } from '@preact/signals';
import { add, bringBack, changeChat, chats, current, currentId, messages, newId, path, reload, removeChat, removeFrom, settings, titleOf } from '../data/chats';
import { readMessages } from '../data/store';
import { type Imported, readFile, storeAll } from '../data/transfer';
import { pathTo, subtree } from '../data/tree';
import type { Message, Run, TextFile } from '../types';
import { stopProof } from './proof';
import { fieldsOf } from './request';
import { explain } from '../server/http';
import { notify } from '../ui/notices';
import { settle, writeMore, writeNew } from './writing';

function message(role: Message['role'], parent: string | null, content: string): Message {
  const chat = currentId.value ?? newId();
  return { id: newId(), chat, parent, role, created: Date.now(), content };
}

function newRun(from: number, fromReasoning: number): Run | null {
  try {
    return { fields: fieldsOf(settings.value), system: settings.value.system, from, fromReasoning };
  } catch (error) {
    notify(`The settings cannot be sent: ${explain(error)}`, 'error');
    return null;
  }
}

/** Sends a message at the end of the branch that is shown. */
export function sendMessage(content: string, files: TextFile[] = []): boolean {
  return sendAfter(current.value?.leaf ?? null, content, files);
}

function sendAfter(parent: string | null, content: string, files: TextFile[]): boolean {
  const run = newRun(0, 0);
  if (!run) return false;
  const asked = { ...message('user', parent, content), ...(files.length ? { files } : {}) };
  add(asked);
  answer(asked, run);
  return true;
}

/** Adds an answer to a message, and writes it. */
function answer(asked: Message, run: Run): void {
  const reply: Message = { ...message('assistant', asked.id, ''), runs: [run], open: true };
  const before = pathTo(messages.value, asked.id);
  // Together, as an open answer that is not written here is another window's.
  batch(() => {
    add(reply);
    void writeNew(reply, before);
  });
}

/** Writes another answer, as an alternative to this one. */
export function regenerate(reply: Message): void {
  const asked = reply.parent === null ? undefined : messages.value.get(reply.parent);
  const run = newRun(0, 0);
  if (asked && run) answer(asked, run);
}

/** Answers a message that has no answer. */
export function answerAgain(asked: Message): void {
  const run = newRun(0, 0);
  if (run) answer(asked, run);
}

/** Goes on with an answer where it ends. */
export function continueReply(reply: Message): void {
  const run = newRun(0, 0);
  if (!run) return;
  stopProof(reply);
  void writeMore(reply, (latest) => {
    const next = { ...run, from: latest.content.length, fromReasoning: latest.reasoning?.length ?? 0 };
    return { ...latest, error: undefined, open: true, runs: [...(latest.runs ?? []), next] };
  });
}

/** Whether an answer can go on where it ends. After calls, their results come next. */
export function canContinue(message: Message): boolean {
  return message.role === 'assistant' && Boolean(message.content || message.reasoning) && !message.calls?.length;
}

/** Replaces a message by an alternative: a question is answered again, an answer stays as it was typed. */
export function edit(old: Message, content: string, files?: TextFile[]): boolean {
  if (old.role === 'user') {
    const isFirst = old.parent === null;
    const isSent = sendAfter(old.parent, content, files ?? old.files ?? []);
    const chat = current.value;
    if (isSent && isFirst && chat && !chat.titled) {
      void changeChat(chat.id, { title: titleOf({ ...old, content }) });
    }
    return isSent;
  }
  const { reasoning, calls } = old;
  const edited = { ...message('assistant', old.parent, content), ...(reasoning ? { reasoning } : {}), ...(calls ? { calls } : {}) };
  add(edited);
  return true;
}

/** Gives a model the results of its calls, and lets it answer. */
export function giveResults(reply: Message, results: ReadonlyMap<string, string>): void {
  const run = newRun(0, 0);
  if (!run) return;
  let parent = reply;
  for (const call of reply.calls ?? []) {
    const content = results.get(call.id) ?? '';
    const given = { ...message('tool', parent.id, content), callId: call.id };
    add(given);
    parent = given;
  }
  answer(parent, run);
}

/** Removes a message and what follows it, which can be undone for a while. Answers that are being written there are stopped. */
export async function remove(message: Message): Promise<void> {
  await settle(openOf(subtree(messages.value, message.id).flatMap((id) => messages.value.get(id) ?? [])));
  const removed = removeFrom(message);
  const n = removed.messages.length;
  notify(`Deleted ${n === 1 ? 'a message' : `${n} messages`}.`, 'info', { label: 'Undo', run: () => bringBack(removed) });
}

/** Removes a conversation. Answers that are being written in it are stopped. */
export async function forget(chat: string): Promise<void> {
  await settle(openOf(await readMessages(chat)));
  await removeChat(chat);
}

/** The answers that are being written, here or in another window. */
function openOf(all: readonly Message[]): string[] {
  return all.filter((message) => message.open).map((message) => message.id);
}

/** Adds the conversations of a file. Before it replaces one that has more than the file, it asks. Null if nothing is left to add. */
export async function importFile(text: string): Promise<Imported | null> {
  const read = await readFile(text);
  const { grown } = read;
  if (grown.length) {
    const names = grown.map(({ chat }) => `“${chats.value.find((other) => other.id === chat.id)?.title ?? chat.title}”`);
    const what = `This page has newer messages than the file in ${names.slice(0, NAMES_MAX).join(', ')}${names.length > NAMES_MAX ? ` and ${names.length - NAMES_MAX} more` : ''}.`;
    if (!confirm(`${what} Replace what is here by the file’s? Otherwise it is kept, and the rest of the file is imported.`)) {
      read.parsed = read.parsed.filter((one) => !grown.includes(one));
    }
  }
  if (!read.parsed.length) return null;
  for (const { chat } of read.parsed) await settle(openOf(await readMessages(chat.id)));
  const done = await storeAll(read.parsed);
  await reload();
  return done;
}

/** The last question of the branch that is shown. */
export function lastQuestion(): Message | undefined {
  return path.value.findLast((message) => message.role === 'user');
}

const NAMES_MAX = 5;
