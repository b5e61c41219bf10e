/** "Run again": the same requests give the same text. */
import { signal } from '@preact/signals';
import { messages } from '../data/chats';
import { pathTo } from '../data/tree';
import { explain } from '../server/http';
import { readAnswer } from '../server/stream';
import type { Message, Run, ToolCall } from '../types';
import { bodyOf } from './request';
import { withCalls } from './writing';

/** How far a proof has come. */
export type Proof =
  | { state: 'running'; share: number }
  | { state: 'same'; times: number; tokens: number; fingerprint?: string }
  | { state: 'different'; at: number; expected: string; found: string; changed: boolean }
  | { state: 'failed'; why: string };

/** Proofs, by what they are of. */
export const proofs = signal<ReadonlyMap<string, Proof>>(new Map());
const running = new Map<string, AbortController>();
const times = new Map<string, number>();

function show(id: string, proof: Proof | null): void {
  const next = new Map(proofs.value);
  if (proof) next.set(id, proof);
  else next.delete(id);
  proofs.value = next;
}

/** What a proof is of: an answer as it is now. Once its text has gone on, in whatever window, it has no proof. */
function keyOf({ id, runs, content, reasoning }: Message): string {
  return [id, runs?.length, content.length, reasoning?.length].join(' ');
}

/** The proof of an answer. */
export function proofOf(message: Message): Proof | undefined {
  return proofs.value.get(keyOf(message));
}

/** Stops a proof. */
export function stopProof(message: Message): void {
  running.get(keyOf(message))?.abort();
}

/** Sends the requests of an answer again, and compares what comes with what came. */
export async function runAgain(message: Message): Promise<void> {
  const { runs = [] } = message;
  const id = keyOf(message);
  if (running.has(id)) return;
  const abort = new AbortController();
  running.set(id, abort);
  show(id, { state: 'running', share: 0 });
  // Another conversation may be shown by the time of a later part.
  const path = pathTo(messages.value, message.parent);
  let tokens = 0;
  let fingerprint: string | undefined;
  try {
    for (const [i, run] of runs.entries()) {
      const comparison = new Comparison(message, run, runs[i + 1]);
      const inner = new AbortController();
      abort.signal.addEventListener('abort', () => inner.abort());
      await readAnswer(bodyOf(run, path, message), {
        signal: inner.signal,
        onPart: (part) => {
          comparison.take(part);
          // An answer that was stopped has no end to compare.
          if (comparison.isOver) inner.abort();
          else show(id, { state: 'running', share: (i + comparison.share) / runs.length });
        },
      }).catch((error: unknown) => {
        if (!comparison.isOver || abort.signal.aborted) throw error;
      });
      const difference = comparison.difference();
      fingerprint = comparison.fingerprint ?? fingerprint;
      tokens += comparison.tokens;
      if (difference) return show(id, difference);
    }
    if (abort.signal.aborted) throw abort.signal.reason;
    const n = (times.get(id) ?? 0) + 1;
    times.set(id, n);
    show(id, { state: 'same', times: n, tokens, ...(fingerprint ? { fingerprint } : {}) });
  } catch (error) {
    show(id, abort.signal.aborted ? null : { state: 'failed', why: explain(error) });
  } finally {
    running.delete(id);
  }
}

/** Compares a run's new text with the old one. */
class Comparison {
  readonly #run: Run;
  readonly #old: string;
  #new = { content: '', reasoning: '', calls: undefined as ToolCall[] | undefined };
  readonly #isWhole: boolean;
  fingerprint: string | undefined;
  tokens = 0;

  constructor(message: Message, run: Run, next: Run | undefined) {
    this.#run = run;
    this.#isWhole = run.finish !== undefined;
    this.#old = flat({
      content: message.content.slice(run.from, next?.from),
      reasoning: (message.reasoning ?? '').slice(run.fromReasoning, next?.fromReasoning),
      calls: next ? undefined : message.calls,
    });
  }

  take(part: Parameters<Parameters<typeof readAnswer>[1]['onPart']>[0]): void {
    this.#new.content += part.content ?? '';
    this.#new.reasoning += part.reasoning ?? '';
    if (part.calls) this.#new.calls = withCalls(this.#new.calls, part.calls);
    this.fingerprint = part.fingerprint ?? this.fingerprint;
    this.tokens = part.timings?.predicted_n ?? this.tokens;
  }

  /** Whether there is nothing more to compare. */
  get isOver(): boolean {
    const found = flat(this.#new);
    const isDifferent = this.#isWhole
      ? !this.#new.calls && !this.#old.startsWith(found)
      : found.length >= this.#old.length;
    return isDifferent;
  }

  get share(): number {
    return this.#old.length ? Math.min(1, flat(this.#new).length / this.#old.length) : 1;
  }

  difference(): Proof | null {
    const found = flat(this.#new);
    const shown = this.#isWhole ? found : found.slice(0, this.#old.length);
    if (shown === this.#old) return null;
    let at = 0;
    while (at < shown.length && shown[at] === this.#old[at]) at += 1;
    const around = (text: string): string => text.slice(Math.max(0, at - 20), at + 20);
    const changed = this.#run.fingerprint !== undefined && this.fingerprint !== this.#run.fingerprint;
    return { state: 'different', at, expected: around(this.#old), found: around(shown), changed };
  }
}

/** An answer as one text. The ids of calls are drawn at random. */
function flat(answer: { content: string; reasoning: string; calls?: ToolCall[] | undefined }): string {
  const calls = (answer.calls ?? []).map((call) => `${call.name}(${call.arguments})`);
  return [answer.reasoning, answer.content, ...calls].filter(Boolean).join('\n');
}
