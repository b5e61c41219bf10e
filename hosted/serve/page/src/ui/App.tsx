/** The page. */
import type { VNode } from 'preact';
import { storage } from '../data/store';
import { preferences } from '../data/preferences';
import { keyWanted } from '../server/http';
import { Composer } from './Composer';
import { Conversation } from './Conversation';
import { Header } from './Header';
import { HelpDialog } from './HelpDialog';
import { KeyDialog } from './KeyDialog';
import { Notices } from './notices';
import { dialog, isListOpen } from './panels';
import { SettingsPanel } from './SettingsPanel';
import { Sidebar } from './Sidebar';

/** All of it. */
export function App(): VNode {
  return (
    <div class={`app ${preferences.value.sidebar ? 'with-list' : ''}`}>
      <Sidebar />
      {isListOpen.value && <div class="shade" onClick={() => (isListOpen.value = false)} />}
      <div class="page" inert={isListOpen.value}>
        <Header />
        {storage.value !== 'stored' && (
          <p class="warning" role="status">
            {UNSTORED[storage.value]}
          </p>
        )}
        <main>
          <Conversation />
          <Composer />
        </main>
      </div>
      {dialog.value === 'settings' && <SettingsPanel />}
      {dialog.value === 'help' && <HelpDialog />}
      {keyWanted.value !== 'no' && <KeyDialog />}
      <Notices />
    </div>
  );
}

const UNSTORED = {
  refused: 'This browser does not let the page store conversations: they end with this window. Export them to keep them.',
  full: 'The browser has no more room for this page: what is new ends with this window, unless conversations are deleted. Export them to keep them.',
  failed: 'The browser could not store what is new. Trying again…',
};
