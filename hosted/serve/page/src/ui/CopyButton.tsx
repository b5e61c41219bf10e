/** Copying texts. */
import type { VNode } from 'preact';
import { useState } from 'preact/hooks';
import { Icon } from './icons';
import { notify } from './notices';

/**
 * Copies a text, and returns whether that worked; if not, a notice says so. Pages that were not loaded over HTTPS or from this machine
 * have to do without the clipboard's API.
 */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const isCopied = copySelected(text);
    if (!isCopied) notify('The browser does not let this page copy.', 'error');
    return isCopied;
  }
}

/** Copies by selecting the text in a field out of sight, and gives the focus back. */
function copySelected(text: string): boolean {
  const focused = document.activeElement;
  const area = document.createElement('textarea');
  area.value = text;
  area.className = 'offscreen';
  const owner = document.querySelector('dialog[open]') ?? document.body;
  owner.append(area);
  area.select();
  const isCopied = document.execCommand('copy');
  area.remove();
  if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
  return isCopied;
}

/** A button that copies, and says so. */
export function CopyButton({ text, label }: { text: () => string; label: string }): VNode {
  const [isDone, setDone] = useState(false);
  const copy = async (): Promise<void> => {
    if (!(await copyText(text()))) return;
    setDone(true);
    setTimeout(() => setDone(false), SHOWN_MS);
  };
  const shown = isDone ? 'Copied' : label;
  return (
    <button type="button" class="icon-button" aria-label={shown} title={shown} onClick={() => void copy()}>
      <Icon name={isDone ? 'check' : 'copy'} />
    </button>
  );
}

const SHOWN_MS = 1500;
