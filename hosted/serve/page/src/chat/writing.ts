/** Answers that are being written: from the first request to the last token, a stop, or an error. */
import { signal } from '@preact/signals';
import { messages, save, set, writing } from '../data/chats';
import { pathTo } from '../data/tree';
import { explain, ServerError } from '../server/http';
import { refreshModels, refreshProps } from '../server/models';
import { Broken, type Part, readAnswer } from '../server/stream';
import type { Message, Run } from '../types';
import { speak } from '../ui/notices';
import { bodyOf } from './request';

/** What an answer that is being written does at the moment. */
export interface Activity {
  chat: string;
  phase: 'waiting' | 'reading' | 'writing' | 'lost';
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

/** Stops an answer. What has been written stays. */
export function stop(id: string): void {
  stops.get(id)?.abort();
}

/** Stops answers, and waits until they have been stored. */
export async function settle(ids: readonly string[]): Promise<void> {
  ids.forEach(stop);
  while (ids.some((id) => writing.has(id))) await new Promise((resolve) => setTimeout(resolve, 20));
}

/** Writes the last run of an answer. Resolves when it has ended, however it did. */
export async function writeAnswer(start: Message, path: readonly Message[]): Promise<void> {
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
    setActivity(start, null);
    await writer.end();
    speak(abort.signal.aborted ? 'Stopped' : 'The answer is complete');
  }
  void refreshModels();
  void refreshProps(writer.run.model);
}

/** Takes up an answer that was being written when the page was closed. */
export async function takeUp(message: Message): Promise<void> {
  if (!message.open || writing.has(message.id)) return;
  const path = pathTo(messages.value, message.parent);
  const work = (): Promise<void> => {
    // Without an event's id, nothing says where to go on.
    if (message.runs?.at(-1)?.lastEvent) return writeAnswer(message, path);
    return save({ ...message, open: false });
  };
  // Another window may be writing it. Both would write the same text.
  if (!navigator.locks) return work();
  await navigator.locks.request(`sluice ${message.id}`, { ifAvailable: true }, (lock) =>
    lock ? work() : undefined,
  );
}

/** Writes an answer under a lock that other windows see. */
export async function writeLocked(start: Message, path: readonly Message[]): Promise<void> {
  setActivity(start, { phase: 'waiting' });
  if (!navigator.locks) return writeAnswer(start, path);
  await navigator.locks.request(`sluice ${start.id}`, () => writeAnswer(start, path));
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
    // A stream that the server refuses to take up is over.
    if (error instanceof ServerError) delete this.run.lastEvent;
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
