/** Keys that work anywhere on the page. */
import { canContinue, continueReply, regenerate } from '../chat/actions';
import { activityOf, stop } from '../chat/writing';
import { path } from '../data/chats';
import { prefer, preferences } from '../data/preferences';
import { dialog, isListOpen, narrow, wantsFocus } from './panels';
import { go } from './Sidebar';

/** The keys and what they do, for people. */
export const SHORTCUTS: [string, string][] = [
  ['Enter', 'Send the message'],
  ['Shift Enter', 'Begin a line'],
  ['Esc', 'Stop the answer, or close what is open'],
  ['↑', 'In an empty field: edit the last message'],
  ['Ctrl K', 'Search conversations'],
  ['Alt N', 'New chat'],
  ['Alt R', 'Regenerate the last answer'],
  ['Alt C', 'Continue the last answer'],
  ['Alt B', 'Show or hide the conversations'],
  ['Alt S', 'Settings'],
  ['/', 'Go to the message field'],
  ['?', 'These keys'],
];

function openList(): void {
  if (narrow.matches) isListOpen.value = true;
  else prefer({ sidebar: true });
}

/** The key that is pressed with Alt. With it, some keyboards type other characters, which a text field gets. */
function letterOf({ altKey, ctrlKey, metaKey, code, key }: KeyboardEvent, isTyping: boolean): string {
  if (!altKey || ctrlKey || metaKey || (isTyping && !/^[a-z]$/i.test(key))) return '';
  return code;
}

function onKey(event: KeyboardEvent): void {
  if (dialog.value !== null || document.querySelector('dialog[open]')) return;
  const isTyping = event.target instanceof HTMLElement && event.target.matches('input, textarea, select');
  const last = path.value.at(-1);
  const isFree = last !== undefined && !activityOf(last);
  const letter = letterOf(event, isTyping);
  if (event.key === 'Escape') {
    if (isListOpen.value) isListOpen.value = false;
    else if (last) stop(last.id);
  } else if (event.key.toLowerCase() === 'k' && (event.ctrlKey || event.metaKey)) {
    openList();
    requestAnimationFrame(() => document.getElementById('search')?.focus());
  } else if (letter === 'KeyN') go(null);
  else if (letter === 'KeyR' && isFree && last.role === 'assistant') regenerate(last);
  else if (letter === 'KeyC' && isFree && canContinue(last)) continueReply(last);
  else if (letter === 'KeyS') dialog.value = 'settings';
  else if (letter === 'KeyB') {
    if (narrow.matches) isListOpen.value = !isListOpen.value;
    else prefer({ sidebar: !preferences.value.sidebar });
  } else if (event.key === '/' && !isTyping) wantsFocus.value += 1;
  else if (event.key === '?' && !isTyping) dialog.value = 'help';
  else return;
  event.preventDefault();
}

/** Starts listening. */
export function listen(): void {
  document.addEventListener('keydown', onKey);
}
