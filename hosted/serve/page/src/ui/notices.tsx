/** Short messages at the edge of the page, which screen readers speak. */
import { signal } from '@preact/signals';
import type { VNode } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { newId } from '../data/chats';
import { IconButton } from './icons';

/** What can be done about a notice. */
interface Action {
  label: string;
  run: () => void;
}

interface Notice {
  id: string;
  text: string;
  kind: 'info' | 'error';
  action: Action | undefined;
}

const notices = signal<Notice[]>([]);
/** What is only spoken. */
const spoken = signal('');

/** Shows a message for a few seconds, for longer if something can be done about it; an error stays until it is closed. */
export function notify(text: string, kind: Notice['kind'] = 'info', action?: Action): void {
  const notice = { id: newId(), text, kind, action };
  notices.value = [...notices.value.filter((other) => other.text !== text || other.action), notice].slice(-3);
  if (kind === 'info') setTimeout(() => close(notice.id), action ? ACTION_MS : SHOWN_MS);
}

let speaking: ReturnType<typeof setTimeout> | undefined;

/** Lets a screen reader say something, also if it is what it said last. */
export function speak(text: string): void {
  spoken.value = '';
  clearTimeout(speaking);
  speaking = setTimeout(() => (spoken.value = text), PAUSE_MS);
}

function close(id: string): void {
  notices.value = notices.value.filter((notice) => notice.id !== id);
}

/** The messages. */
export function Notices(): VNode {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    box.current?.hidePopover();
    // What is shown last is above the dialogs.
    if (notices.value.length) box.current?.showPopover();
  }, [notices.value]);
  return (
    <>
      <div class="offscreen" role="status">
        {spoken}
      </div>
      <div class="notices" role="log" aria-label="Notices" popover="manual" ref={box}>
        {notices.value.map(({ id, kind, text, action }) => (
          <div key={id} class={`notice ${kind}`}>
            <span>{text}</span>
            {action && (
              <button
                type="button"
                onClick={() => {
                  close(id);
                  action.run();
                }}
              >
                {action.label}
              </button>
            )}
            <IconButton icon="close" label="Close" onClick={() => close(id)} />
          </div>
        ))}
      </div>
    </>
  );
}

const SHOWN_MS = 4000;
const ACTION_MS = 15_000;
/** A region that is empty for less is read as one that has not changed. */
const PAUSE_MS = 100;
