/** Short messages at the edge of the page, which screen readers speak. */
import { signal } from '@preact/signals';
import type { VNode } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { newId } from '../data/chats';
import { IconButton } from './icons';

interface Notice {
  id: string;
  text: string;
  kind: 'info' | 'error';
}

const notices = signal<Notice[]>([]);
/** What is only spoken. */
const spoken = signal('');

/** Shows a message for a few seconds; an error stays until it is closed. */
export function notify(text: string, kind: Notice['kind'] = 'info'): void {
  const notice = { id: newId(), text, kind };
  notices.value = [...notices.value.filter((other) => other.text !== text), notice].slice(-3);
  if (kind === 'info') setTimeout(() => close(notice.id), SHOWN_MS);
}

/** Lets a screen reader say something. */
export function speak(text: string): void {
  spoken.value = text;
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
        {notices.value.map((notice) => (
          <div key={notice.id} class={`notice ${notice.kind}`}>
            <span>{notice.text}</span>
            <IconButton icon="close" label="Close" onClick={() => close(notice.id)} />
          </div>
        ))}
      </div>
    </>
  );
}

const SHOWN_MS = 4000;
