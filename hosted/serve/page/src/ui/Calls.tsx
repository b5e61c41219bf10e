/** Calls of tools: what the model asks for, and a place for the results. */
import type { VNode } from 'preact';
import { useState } from 'preact/hooks';
import { giveResults } from '../chat/actions';
import { CodeBlock } from '../markdown/CodeBlock';
import type { Message } from '../types';
import { Icon } from './icons';

/** The calls of an answer. */
export function Calls({ message, wantsResults }: { message: Message; wantsResults: boolean }): VNode {
  const calls = message.calls ?? [];
  return (
    <>
      {calls.map((call, i) => (
        <div key={i} class="call">
          <p>
            <Icon name="tool" /> <code>{call.name}</code>
          </p>
          <CodeBlock text={pretty(call.arguments)} language="json" />
        </div>
      ))}
      {wantsResults && !message.error && <Results message={message} />}
    </>
  );
}

function Results({ message }: { message: Message }): VNode {
  const [results, setResults] = useState<ReadonlyMap<string, string>>(new Map());
  const calls = message.calls ?? [];
  return (
    <form
      class="results"
      onSubmit={(event) => {
        event.preventDefault();
        giveResults(message, results);
      }}
    >
      {calls.map((call, i) => (
        <label key={i}>
          Result of {call.name}
          <textarea
            rows={2}
            value={results.get(call.id) ?? ''}
            onInput={(event) => setResults(new Map(results).set(call.id, event.currentTarget.value))}
          />
        </label>
      ))}
      <button type="submit">Send {calls.length === 1 ? 'the result' : 'the results'}</button>
    </form>
  );
}

/** JSON with line ends, once it is complete. */
function pretty(text: string): string {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  // Not by its values: a number may have more digits than JavaScript's.
  let depth = 0;
  const line = (): string => `\n${'  '.repeat(depth)}`;
  return text.replace(/("(?:[^"\\]|\\.)*")|\s+|([[{])(?:\s*([\]}]))?|([\]}])|(,)|(:)/g, (_, string, open, empty, close, comma, colon) => {
    if (string) return string;
    if (empty) return open + empty;
    if (open) {
      depth += 1;
      return open + line();
    }
    if (close) {
      depth -= 1;
      return line() + close;
    }
    return comma ? comma + line() : colon ? ': ' : '';
  });
}
