/** What this browser prefers: settings of new conversations, and how the page looks. */
import { effect, signal } from '@preact/signals';
import type { Settings } from '../types';
import { base } from '../server/http';
import { readLocal, writeLocal } from './local';

const NAME = `sluice.preferences${base.pathname}`;

interface Preferences {
  theme: 'system' | 'light' | 'dark';
  /** Whether the list of conversations is shown beside the conversation. */
  sidebar: boolean;
  /** The settings of new conversations. */
  settings: Settings;
}

const EMPTY: Settings = { system: '', params: {} };

function read(): Preferences {
  const found: Preferences = { theme: 'system', sidebar: true, settings: EMPTY };
  try {
    Object.assign(found, JSON.parse(readLocal(NAME) ?? '{}'));
  } catch {
    // Not ours: the defaults hold.
  }
  return found;
}

/** The preferences, which are stored as they change. */
export const preferences = signal(read());

/** The settings of new conversations. */
export function defaults(): Settings {
  return structuredClone(preferences.value.settings);
}

/** Changes some preferences. */
export function prefer(change: Partial<Preferences>): void {
  preferences.value = { ...preferences.value, ...change };
  writeLocal(NAME, JSON.stringify(preferences.value));
}

/** Keeps the document's colours as preferred. */
export function followTheme(): void {
  effect(() => {
    const { theme } = preferences.value;
    if (theme === 'system') delete document.documentElement.dataset['theme'];
    else document.documentElement.dataset['theme'] = theme;
  });
}
