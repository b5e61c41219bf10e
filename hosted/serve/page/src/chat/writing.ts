/** Answers that are being written: from the first request to the last token, a stop, or an error. */
import { signal } from '@preact/signals';
import { latest, messages, save, set, writing } from '../data/chats';
import { hear, tellOthers } from '../data/store';
import { pathTo } from '../data/tree';
import { explain, ServerError } from '../server/http';
import { refreshModels, refreshProps } from '../server/models';
import { Broken, Ended, type Part, readAnswer } from '../server/stream';
import type { Message, Run } from '../types';
import { notify, speak } from '../ui/notices';
import { asFirst, ifFree, whenFree } from './locks';
import { bodyOf } from './request';

/** What an answer that is being written does at the moment. */
export interface Activity {
  chat: string;
  phase: 'waiting' | 'reading' | 'writing' | 'lost' | 'elsewhere';
  /** How much of the prompt has been read. */
  progress?: Part['progress'];
}

/** The answers that are being written, by their messages' ids. */
export const activities = signal<ReadonlyMap<string, Activity>>(new Map());
const stops = new Map<string, AbortController>();

function setActivity({ id, chat }: Message, activity: Omit<Activity, 'chat'> | null): void {
  const next = new Map(activities.value);
  if (activity) next.set(id, { ...activity, chat });
  else next.delete(id);
  activities.value = next;
}

/** What a message's answer does: an answer that is open and not written here is written by another window. */
export function activityOf(message: Message | undefined): Activity | undefined {
  if (!message) return undefined;
  return activities.value.get(message.id) ?? (message.open ? ELSEWHERE : undefined);
}

const ELSEWHERE: Activity = { chat: '', phase: 'elsewhere' };

/** Stops an answer, in whatever window it is written. What has been written stays. */
export function stop(id: string): void {
  const here = stops.get(id);
  if (here) here.abort();
  else tellOthers({ stop: [id] });
}

hear(({ stop: ids = [] }) => ids.forEach((id) => stops.get(id)?.abort()));

/** Stops answers, and waits until they have been stored. */
export async function settle(ids: readonly string[]): Promise<void> {
  ids.forEach(stop);
  while (ids.some((id) => writing.has(id))) await new Promise((resolve) => setTimeout(resolve, 20));
  // A window that the browser has put to sleep does not answer.
  const signal = AbortSignal.timeout(SETTLE_MS);
  await Promise.all(ids.map((id) => whenFree(id, () => Promise.resolve(), signal).catch(() => undefined)));
}

/** Writes the last run of an answer. Resolves when it has ended, however it did. */
async function writeAnswer(start: Message, path: readonly Message[]): Promise<void> {
  const writer = new Writer(start);
  const { id } = start;
  const abort = new AbortController();
  stops.set(id, abort);
  writing.add(id);
  setActivity(start, { phase: 'waiting' });
  writer.saveNow();
  try {
    const body = bodyOf(writer.run, path, start);
    await readAnswer(body, {
      signal: abort.signal,
      after: writer.run.lastEvent,
      onPart: (part) => writer.take(part),
      onLost: (isLost) => setActivity(start, { phase: isLost ? 'lost' : 'writing' }),
    });
  } catch (error) {
    if (!abort.signal.aborted) writer.fail(error);
  } finally {
    stops.delete(id);
    writing.delete(id);
    const stored = writer.end();
    setActivity(start, null);
    await stored;
    speak(abort.signal.aborted ? 'Stopped' : writer.hasFailed ? 'The answer failed' : 'The answer is complete');
  }
  void refreshModels();
  void refreshProps(writer.run.model);
}

/** Takes up an answer that was being written when the page was closed, once no other window writes it. */
export async function takeUp({ id, chat }: Message): Promise<void> {
  if (writing.has(id) || activities.value.has(id) || taken.has(id)) return;
  taken.add(id);
  const work = async (): Promise<void> => {
    // Another window may have written it since.
    const message = await latest(id);
    const run = message?.runs?.at(-1);
    if (!message || message.chat !== chat) return;
    const isOver = !message.open && !(message.error && run?.lastEvent);
    if (isOver) return;
    // Without an event's id, nothing says where to go on.
    if (run?.lastEvent) await writeAnswer({ ...message, error: undefined }, pathOf(message));
    else await save({ ...message, open: false });
  };
  try {
    await whenFree(id, work);
  } finally {
    taken.delete(id);
  }
}

/** Answers that wait for another window to end. */
const taken = new Set<string>();

function pathOf(message: Message): Message[] {
  return pathTo(messages.value, message.parent);
}

/** Writes a new answer, under a lock that other windows see. */
export async function writeNew(start: Message, path: readonly Message[]): Promise<void> {
  setActivity(start, { phase: 'waiting' });
  await asFirst(start.id, () => writeAnswer(start, path));
}

/** Writes more of an answer. `longer` makes it from what is stored, as another window may have written it. */
export async function writeMore(old: Message, longer: (latest: Message) => Message): Promise<void> {
  if (activityOf(old)) return;
  setActivity(old, { phase: 'waiting' });
  let isDone = false;
  await ifFree(old.id, async () => {
    const start = await latest(old.id);
    isDone = start !== undefined && !start.open;
    if (start && isDone) await writeAnswer(longer(start), pathOf(start));
  });
  if (isDone) return;
  setActivity(old, null);
  notify('Another window is writing this answer.', 'error');
}

/** Gathers the parts of a message, and shows and stores them from time to time. */
class Writer {
  #message: Message;
  readonly run: Run;
  readonly #begun = performance.now();
  #shown: ReturnType<typeof setTimeout> | undefined;
  #saved = 0;

  constructor(message: Message) {
    const runs = [...(message.runs ?? [])];
    this.run = { ...(runs.pop() as Run) };
    this.#message = { ...message, open: true, error: undefined, runs: [...runs, this.run] };
  }

  take(part: Part): void {
    const { run } = this;
    const message = this.#message;
    if (part.progress) setActivity(message, { phase: 'reading', progress: part.progress });
    const isText = Boolean(part.content ?? part.reasoning ?? part.calls?.length);
    if (isText && activities.value.get(message.id)?.phase !== 'writing') {
      setActivity(message, { phase: 'writing' });
    }
    if (isText) run.firstTokenMs ??= performance.now() - this.#begun;
    run.fingerprint = part.fingerprint ?? run.fingerprint;
    run.model = part.model ?? run.model;
    run.timings = part.timings ?? run.timings;
    run.finish = part.finish ?? run.finish;
    run.lastEvent = part.event ?? run.lastEvent;
    message.content += part.content ?? '';
    if (part.reasoning) message.reasoning = (message.reasoning ?? '') + part.reasoning;
    if (part.calls) message.calls = withCalls(message.calls, part.calls);
    this.#shown ??= setTimeout(() => this.#show(), SHOW_MS);
  }

  #show(): void {
    this.#shown = undefined;
    if (performance.now() - this.#saved > SAVE_MS) this.saveNow();
    else set(this.#snapshot());
  }

  saveNow(): void {
    this.#saved = performance.now();
    void save(this.#snapshot());
  }

  fail(error: unknown): void {
    this.#message.error = error instanceof Broken ? error.message : explain(error);
    // A stream that the server refuses to take up is over. One without a key, or that comes too soon or late, may be asked for again.
    const isPassing = error instanceof ServerError && (error.status >= 500 || [401, 408, 429].includes(error.status));
    if (error instanceof Ended || (error instanceof ServerError && !isPassing)) delete this.run.lastEvent;
  }

  get hasFailed(): boolean {
    return this.#message.error !== undefined;
  }

  end(): Promise<void> {
    clearTimeout(this.#shown);
    this.#message.open = false;
    if (!this.#message.error) delete this.run.lastEvent;
    return save(this.#snapshot());
  }

  #snapshot(): Message {
    const runs = this.#message.runs?.slice(0, -1) ?? [];
    return { ...this.#message, runs: [...runs, { ...this.run }] };
  }
}

/** Calls with what is new in them. */
export function withCalls(calls: Message['calls'], parts: NonNullable<Part['calls']>): Message['calls'] {
  const all = (calls ?? []).map((call) => ({ ...call }));
  for (const part of parts) {
    const call = (all[part.index] ??= { id: '', name: '', arguments: '' });
    call.id ||= part.id ?? '';
    call.name ||= part.name ?? '';
    call.arguments += part.arguments ?? '';
  }
  return all;
}

/** A text that is written is shown 20 times a second, which leaves the CPU to the model. */
const SHOW_MS = 50;
const SAVE_MS = 1000;
const SETTLE_MS = 3000;
