/** Requests, made from messages and settings. */
import { firstModel } from '../server/models';
import type { Message, Run, Settings, TextFile } from '../types';
import { extraOf, toolsOf } from './fields';

type Sent = Record<string, unknown>;

/**
 * The fields of a request besides its messages. A seed is always set, so that the text can be made again. Throws if the JSON in the
 * settings is not right.
 */
export function fieldsOf(settings: Settings): Record<string, unknown> {
  const fields: Record<string, unknown> = {};
  const model = settings.model ?? firstModel.value;
  if (model) fields['model'] = model;
  Object.assign(fields, settings.params);
  const scales = Object.entries(settings.adapters ?? {});
  if (scales.length) fields['lora'] = scales.map(([name, scale]) => ({ name, scale }));
  if (settings.thinking !== undefined) fields['enable_thinking'] = settings.thinking;
  if (settings.effort) fields['reasoning_effort'] = settings.effort;
  const tools = toolsOf(settings.tools);
  if (tools) fields['tools'] = tools;
  Object.assign(fields, extraOf(settings.extra));
  const { seed } = fields;
  fields['seed'] = typeof seed === 'number' && seed >= 0 ? seed : randomSeed();
  return fields;
}

function randomSeed(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;
}

/** The body that makes a run of the answer that follows `path`; `reply` is the beginning that it continues. */
export function bodyOf(run: Run, path: readonly Message[], reply?: Message): string {
  const messages: Sent[] = run.system.trim() ? [{ role: 'system', content: run.system }] : [];
  messages.push(...path.map(sent));
  const continues = reply && (run.from > 0 || run.fromReasoning > 0);
  if (continues) {
    const last: Sent = { role: 'assistant', content: reply.content.slice(0, run.from) };
    if (run.fromReasoning > 0) last['reasoning_content'] = reply.reasoning?.slice(0, run.fromReasoning);
    messages.push(last);
  }
  return JSON.stringify({
    ...run.fields,
    messages,
    ...(continues ? { continue_final_message: true, add_generation_prompt: false } : {}),
    stream: true,
    return_progress: true,
    timings_per_token: true,
  });
}

function sent(message: Message): Sent {
  if (message.role === 'tool') {
    return { role: 'tool', tool_call_id: message.callId, content: message.content };
  }
  if (message.role === 'user') return { role: 'user', content: withFiles(message.content, message.files) };
  const all: Sent = { role: 'assistant', content: message.content };
  if (message.reasoning) all['reasoning_content'] = message.reasoning;
  if (message.calls?.length) {
    all['tool_calls'] = message.calls.map((call) => ({
      id: call.id,
      type: 'function',
      function: { name: call.name, arguments: call.arguments || '{}' },
    }));
  }
  return all;
}

/** A message's text after the files that were dropped into it, each in a fence that its text cannot end. */
export function withFiles(text: string, files: readonly TextFile[] = []): string {
  const parts = files.map((file) => {
    const longest = Math.max(2, ...(file.text.match(/`{3,}/g) ?? []).map((ticks) => ticks.length));
    const fence = '`'.repeat(longest + 1);
    return `${file.name}:\n${fence}\n${file.text}${file.text.endsWith('\n') ? '' : '\n'}${fence}`;
  });
  return [...parts, text].filter(Boolean).join('\n\n');
}
