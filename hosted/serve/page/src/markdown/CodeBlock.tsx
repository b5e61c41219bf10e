/** Code, with its colours and a button that copies it. */
import type { VNode } from 'preact';
import { useMemo } from 'preact/hooks';
import { CopyButton } from '../ui/CopyButton';
import { highlight } from './highlight';

/** A block of code. */
export function CodeBlock({ text, language }: { text: string; language: string }): VNode {
  const name = /^[\w+#.-]{1,20}/.exec(language.trim())?.[0] ?? '';
  const spans = useMemo(() => highlight(text, name), [text, name]);
  return (
    <figure class="code">
      <figcaption>
        <span>{name || 'text'}</span>
        <CopyButton text={() => text} label="Copy code" />
      </figcaption>
      <pre tabIndex={0} role="group" aria-label={name ? `Code, ${name}` : 'Code'}>
        <code>{spans.map(([kind, part]) => (kind ? <span class={kind}>{part}</span> : part))}</code>
      </pre>
    </figure>
  );
}
