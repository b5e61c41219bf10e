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
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
