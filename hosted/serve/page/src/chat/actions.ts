/** What a person does with a conversation. */
import { add, changeChat, current, currentId, messages, newId, path, removeChat, removeFrom, settings, titleOf } from '../data/chats';
import { pathTo, subtree } from '../data/tree';
import type { Message, Run, TextFile } from '../types';
import { fieldsOf } from './request';
import { notify } from '../ui/notices';
import { activities, settle, writeLocked } from './writing';

function message(role: Message['role'], parent: string | null, content: string): Message {
  const chat = currentId.value ?? newId();
  return { id: newId(), chat, parent, role, created: Date.now(), content };
}

function newRun(from: number, fromReasoning: number): Run | null {
  try {
    return { fields: fieldsOf(settings.value), system: settings.value.system, from, fromReasoning };
  } catch {
    notify('The tools or the further fields in the settings are not JSON.', 'error');
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
  add(reply);
  void writeLocked(reply, before);
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
  const run = newRun(reply.content.length, reply.reasoning?.length ?? 0);
  if (!run) return;
  const path = pathTo(messages.value, reply.parent);
  const longer = { ...reply, error: undefined, open: true, runs: [...(reply.runs ?? []), run] };
  void writeLocked(longer, path);
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
  const { reasoning } = old;
  const edited = { ...message('assistant', old.parent, content), ...(reasoning ? { reasoning } : {}) };
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

/** Removes a message and what follows it. Answers that are being written there are stopped. */
export async function remove(message: Message): Promise<void> {
  await settle(subtree(messages.value, message.id));
  await removeFrom(message);
}

/** Removes a conversation. Answers that are being written in it are stopped. */
export async function forget(chat: string): Promise<void> {
  const all = [...activities.value].filter(([, activity]) => activity.chat === chat);
  await settle(all.map(([id]) => id));
  await removeChat(chat);
}

/** The last question of the branch that is shown. */
export function lastQuestion(): Message | undefined {
  return path.value.findLast((message) => message.role === 'user');
}
