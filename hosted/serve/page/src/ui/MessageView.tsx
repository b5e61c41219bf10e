/** A message, with what can be done with it. */
import type { VNode } from 'preact';
import { useState } from 'preact/hooks';
import { answerAgain, canContinue, continueReply, edit, regenerate, remove } from '../chat/actions';
import { type Activity, takeUp } from '../chat/writing';
import { messages, showBranch } from '../data/chats';
import { siblings } from '../data/tree';
import { Markdown } from '../markdown/Markdown';
import { isReady } from '../server/models';
import type { Message } from '../types';
import { Calls } from './Calls';
import { CopyButton } from './CopyButton';
import { Boundary } from './Boundary';
import { Files } from './Files';
import { useFocus } from './focus';
import { Icon, IconButton } from './icons';
import { LiveStats, Stats } from './Stats';

/** A message, and where it stands. */
export interface Place {
  message: Message;
  isLast: boolean;
  /** Its place among the alternatives to it. */
  at: number;
  count: number;
  /** What its answer does, if it is being written. */
  activity: Activity | undefined;
}

/** A message. */
export function MessageView(place: Place): VNode {
  const { message } = place;
  const [isEdited, setEdited] = useState(false);
  const who = { user: 'You', assistant: 'Answer', tool: 'Result' }[message.role];
  return (
    <article class={`message ${message.role}`} aria-label={who} data-id={message.id}>
      {isEdited ? (
        <Editor message={message} onEnd={() => setEdited(false)} />
      ) : (
        <Boundary of={message} text={message.content}>
          <Body {...place} />
        </Boundary>
      )}
      {!isEdited && (
        <Boundary of={message}>
          <Footer {...place} onEdit={() => setEdited(true)} />
        </Boundary>
      )}
    </article>
  );
}

function Body({ message, activity, isLast }: Place): VNode {
  if (message.role === 'tool') {
    return (
      <details class="fold">
        <summary>
          <Icon name="tool" /> Result of a tool
        </summary>
        <pre tabIndex={0}>{message.content}</pre>
      </details>
    );
  }
  if (message.role === 'user') {
    return (
      <div class="bubble">
        {message.files && <Files files={message.files} />}
        {message.content && <p class="typed">{message.content}</p>}
      </div>
    );
  }
  const isThinking = activity !== undefined && !message.content && !message.calls?.length;
  return (
    <div class="reply" aria-busy={activity !== undefined}>
      {message.reasoning && <Reasoning text={message.reasoning} isThinking={isThinking} />}
      {message.content && <Markdown text={message.content} />}
      {message.calls && <Calls message={message} wantsResults={isLast && !activity} />}
      {activity && <Progress activity={activity} model={message.runs?.at(-1)?.fields['model']} />}
      {!activity && !message.content && !message.calls?.length && !message.error && <p class="hint">No text</p>}
      {message.error && <Failure message={message} />}
    </div>
  );
}

function Reasoning({ text, isThinking }: { text: string; isThinking: boolean }): VNode {
  return (
    <details class="fold reasoning">
      <summary>{isThinking ? 'Reasoning…' : 'Reasoning'}</summary>
      <Markdown text={text} />
    </details>
  );
}

function Progress({ activity, model }: { activity: Activity; model: unknown }): VNode | null {
  const { phase, progress } = activity;
  if (phase === 'writing') return <span class="cursor" aria-hidden="true" />;
  if (phase === 'elsewhere') return <p class="waiting">Another window is writing this answer.</p>;
  if (phase === 'lost') return <p class="waiting">The connection was lost. Taking the answer up again…</p>;
  if (phase === 'waiting' || !progress) {
    const isLoading = typeof model === 'string' && !isReady(model);
    return <p class="waiting">{isLoading ? 'The model is being loaded…' : 'Waiting for the server…'}</p>;
  }
  const { total, processed, cache } = progress;
  return (
    <p class="waiting">
      <progress max={total} value={processed} aria-label="Prompt read" /> Reading {total} tokens
      {cache > 0 ? `, ${cache} of them cached` : ''}
    </p>
  );
}

function Failure({ message }: { message: Message }): VNode {
  return (
    <p class="failure" role="alert">
      {message.error}{' '}
      {message.runs?.at(-1)?.lastEvent && (
        <button type="button" class="text-button" onClick={() => void takeUp(message)}>
          Take it up again
        </button>
      )}{' '}
      <button type="button" class="text-button" onClick={() => regenerate(message)}>
        Try again
      </button>
    </p>
  );
}

function Editor({ message, onEnd }: { message: Message; onEnd: () => void }): VNode {
  const [text, setText] = useState(message.content);
  const area = useFocus<HTMLTextAreaElement>();
  const save = (): void => {
    if (edit(message, text)) onEnd();
  };
  return (
    <form
      class="editor"
      onSubmit={(event) => {
        event.preventDefault();
        save();
      }}
    >
      {message.files && <Files files={message.files} />}
      <textarea
        aria-label="Edited message"
        value={text}
        rows={Math.min(20, text.split('\n').length + 1)}
        ref={area}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === 'Escape') {
            event.stopPropagation();
            onEnd();
          }
          if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) save();
        }}
      />
      <div class="row">
        <button type="submit" class="primary" disabled={!text.trim() && !message.files?.length}>
          {message.role === 'user' ? 'Send' : 'Save'}
        </button>
        <button type="button" onClick={onEnd}>
          Cancel
        </button>
        <span class="hint">The message as it was stays, as another branch.</span>
      </div>
    </form>
  );
}

function Footer({ onEdit, ...place }: Place & { onEdit: () => void }): VNode {
  const { message, isLast, activity } = place;
  const isReply = message.role === 'assistant';
  if (activity) {
    return (
      <footer>
        <LiveStats message={message} />
      </footer>
    );
  }
  return (
    <footer>
      <Branches {...place} />
      <CopyButton text={() => message.content} label="Copy message" />
      {message.role !== 'tool' && <IconButton icon="edit" label="Edit" onClick={onEdit} />}
      {isReply && <IconButton icon="regenerate" label="Regenerate" onClick={() => regenerate(message)} />}
      {isLast && canContinue(message) && (
        <IconButton icon="forward" label="Continue" onClick={() => continueReply(message)} />
      )}
      {!isReply && isLast && (
        <IconButton icon="regenerate" label="Answer this message" onClick={() => answerAgain(message)} />
      )}
      <IconButton icon="delete" label="Delete this message and what follows it" onClick={() => void remove(message)} />
      {isReply && (message.content || message.reasoning || message.calls) && <Stats message={message} />}
    </footer>
  );
}

function Branches({ message, at, count }: Place): VNode | null {
  if (count < 2) return null;
  const go = (step: number): void => {
    const other = siblings(messages.peek(), message)[at + step];
    if (other) showBranch(other);
  };
  return (
    <span class="branches" role="group" aria-label={`Branch ${at + 1} of ${count}`}>
      <IconButton icon="left" label="Previous branch" disabled={at === 0} onClick={() => go(-1)} />
      <span aria-hidden="true">
        {at + 1}/{count}
      </span>
      <IconButton icon="right" label="Next branch" disabled={at === count - 1} onClick={() => go(1)} />
    </span>
  );
}
