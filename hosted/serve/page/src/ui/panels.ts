/** Which panels and dialogs are open. */
import { signal } from '@preact/signals';

/** The dialog that is open. */
export const dialog = signal<'settings' | 'help' | null>(null);
/** Whether the list of conversations covers the page, on narrow screens. */
export const isListOpen = signal(false);
/** Set to move the focus to the message field. */
export const wantsFocus = signal(0);

/** Whether the screen has room for one column only. */
export const narrow = matchMedia('(max-width: 52rem)');

// On a wide screen the list is beside the page, which can be used then.
narrow.addEventListener('change', () => (isListOpen.value = false));

/** Moves the focus to the message field, unless that would open a phone's keyboard. */
export function focusComposer(): void {
  if (!matchMedia('(pointer: coarse)').matches) wantsFocus.value += 1;
}
