/** Streams of `/v1/chat/completions`, taken up again where the connection broke. */
import type { Timings } from '../types';
import { EventParser, type ServerEvent } from './events';
import { send, ServerError } from './http';

/** A part of an answer. */
export interface Part {
  content?: string;
  reasoning?: string;
  calls?: { index: number; id?: string; name?: string; arguments?: string }[];
  finish?: string;
  fingerprint?: string;
  model?: string;
  timings?: Timings;
  progress?: { total: number; cache: number; processed: number };
  /** The id of the event, after which the stream can be taken up again. */
  event?: string;
}

interface Chunk {
  model?: string;
  system_fingerprint?: string;
  timings?: Timings;
  prompt_progress?: Part['progress'];
  error?: { message?: string; code?: number };
  choices?: {
    delta?: {
      content?: string | null;
      reasoning_content?: string | null;
      tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[];
    };
    finish_reason?: string | null;
  }[];
}

/** The connection broke, and the stream could not be taken up again. */
export class Broken extends Error {}

/** The server ended the stream with an error: there is nothing to take up. */
export class Ended extends Error {}

/** How a stream is read. */
export interface Reading {
  signal: AbortSignal;
  /** Called with each part, in order. */
  onPart: (part: Part) => void;
  /** The last event of an earlier reading, after which this one goes on. */
  after?: string;
  /** Called when the connection is lost, and when the stream goes on. */
  onLost?: (isLost: boolean) => void;
}

/** Reads the answer to a request whose body is `body`, until it is complete. */
export async function readAnswer(body: string, reading: Reading): Promise<void> {
  let after = reading.after;
  let seen = after !== undefined;
  for (let tries = 0; ; ) {
    try {
      const headers: Record<string, string> = { 'content-type': 'application/json' };
      if (after !== undefined) headers['last-event-id'] = after;
      const init = { method: 'POST', body, headers, signal: reading.signal };
      const response = await send('v1/chat/completions', init);
      const done = await readEvents(response, (event) => {
        const part = partOf(event);
        if (tries > 0) reading.onLost?.(false);
        tries = 0;
        after = event.id ?? after;
        seen ||= isText(part);
        reading.onPart(part);
      });
      if (done) return;
      throw new TypeError('the stream ended early');
    } catch (error) {
      // Only a lost connection is a TypeError; without an event's id, text that was seen would come twice.
      const isLost = error instanceof TypeError || ((tries > 0 || after !== undefined) && isPassing(error));
      if (reading.signal.aborted || !isLost) throw error;
      if (seen && after === undefined) throw new Broken('The connection was lost.');
      tries += 1;
      if (tries > PAUSES_MS.length) {
        throw seen ? new Broken('The connection was lost.') : error;
      }
      reading.onLost?.(true);
      await pause(PAUSES_MS[tries - 1] ?? 0, reading.signal);
    }
  }
}

/** Whether a server that is starting again says so: a proxy's 502, or its own 503. */
function isPassing(error: unknown): boolean {
  return error instanceof ServerError && PASSING.includes(error.status);
}

/** Reads events until `[DONE]`; false if the stream ended before. */
async function readEvents(response: Response, onEvent: (event: ServerEvent) => void): Promise<boolean> {
  const reader = response.body?.getReader();
  if (!reader) return false;
  const decoder = new TextDecoder();
  const parser = new EventParser();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return false;
    for (const event of parser.push(decoder.decode(value, { stream: true }))) {
      if (event.data === '[DONE]') return true;
      onEvent(event);
    }
  }
}

function partOf(event: ServerEvent): Part {
  const chunk = JSON.parse(event.data) as Chunk;
  if (chunk.error) throw errorOf(chunk.error);
  const choice = chunk.choices?.[0];
  const part: Part = {};
  if (choice?.delta?.content) part.content = choice.delta.content;
  if (choice?.delta?.reasoning_content) part.reasoning = choice.delta.reasoning_content;
  part.calls = choice?.delta?.tool_calls?.map((call) => ({
    index: call.index,
    id: call.id,
    name: call.function?.name,
    arguments: call.function?.arguments,
  }));
  if (choice?.finish_reason) part.finish = choice.finish_reason;
  part.fingerprint = chunk.system_fingerprint;
  part.model = chunk.model;
  part.timings = chunk.timings;
  part.progress = chunk.prompt_progress;
  part.event = event.id;
  return part;
}

/** A server that is stopped says so in its streams: they can be taken up when it is back. */
function errorOf({ code = 500, message = 'the answer failed' }: NonNullable<Chunk['error']>): Error {
  return PASSING.includes(code) ? new ServerError(code, message) : new Ended(message);
}

function isText(part: Part): boolean {
  return Boolean(part.content ?? part.reasoning ?? part.calls?.length);
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

const PASSING = [502, 503, 504];
/** Waits between attempts to take a stream up again. */
const PAUSES_MS = [100, 400, 1000, 2000, 4000, 8000, 8000, 8000];
